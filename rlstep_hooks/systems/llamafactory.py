"""LLaMA-Factory's PPO: TRL's old `step()` with sizes of its own; its "step" is a rollout, and its LR horizon is rounded up.

Read in the wheels of 0.9.3 and 0.9.5: llamafactory/train/ppo/trainer.py `CustomPPOTrainer` (sizes, `ppo_train`),
hparams/finetuning_args.py (defaults), cli.py and launcher.py (processes); and in trl 0.9.6 trl/trainer/ppo_trainer.py `step`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch import processes
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.accumulation import Accumulation, updates_of_run
from rlstep_hooks.planning.counting import countable
from rlstep_hooks.planning.phases import Passes, schedule_in_phases
from rlstep_hooks.planning.reading import Formula, Note, Reading
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.planning.schedule import Flush
from rlstep_hooks.systems.reader import Reader, Request
from rlstep_hooks.systems.training_arguments import learning_rate_facts

if TYPE_CHECKING:
    from collections.abc import Mapping

_TRAINER = "LLaMA-Factory 0.9.3 llamafactory/train/ppo/trainer.py"
_STEP = "trl 0.9.6 trl/trainer/ppo_trainer.py step"

DEFAULTS: dict[str, Any] = {
    "stage": "sft",
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "ppo_buffer_size": 1,
    "ppo_epochs": 4,
    "max_steps": -1,
    "num_train_epochs": 3.0,
    "val_size": 0.0,
    "eval_dataset": None,
    "lr_scheduler_type": "linear",
    "warmup_steps": 0,
    "warmup_ratio": 0.0,
    "save_steps": 500,
}
_IN_PLAN = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "ppo_buffer_size",
    "ppo_epochs",
    "max_steps",
    "num_train_epochs",
)


class LLaMAFactory(Reader):
    """`llamafactory-cli train` with `stage: ppo`."""

    name = "llamafactory"
    title = "LLaMA-Factory"
    version = "0.9.3"
    overrides = True

    def defaults(self, version: str) -> Mapping[str, Any]:
        """Defaults of FinetuningArguments and of transformers' TrainingArguments."""
        return DEFAULTS

    def read(self, request: Request) -> Reading:
        """The Schedule; see the module for its sources."""
        settings = request.settings
        stage = settings.text("stage")
        if stage != "ppo":
            raise LaunchError(
                f"stage = {stage}: only `stage: ppo` is reinforcement learning here", settings.place("stage")
            )
        if settings.number("val_size") > 0 or settings.text("eval_dataset") is not None:
            raise PlanError(
                "PPOTrainer does not support eval dataset yet.",
                when="when the trainer is built",
                fix="no val_size and no eval_dataset",
                source=f"{_TRAINER} CustomPPOTrainer.__init__",
            )
        world_size = _processes(request)
        micro = settings.count("per_device_train_batch_size")
        accumulation = Accumulation(
            microbatches=(micro,)
            * countable(
                settings.count("gradient_accumulation_steps") * settings.count("ppo_buffer_size"),
                "micro-batches of one pass",
            ),
            passes=settings.count("ppo_epochs"),
            window=settings.count("gradient_accumulation_steps"),
        )
        samples = sum(accumulation.microbatches) * world_size
        rows = request.rows()
        passes, horizon = _passes(request, rows.count, rows.source, samples)
        updates, unknown = _updates(accumulation, passes)
        formulas = _formulas(passes, horizon)
        schedule = schedule_in_phases(
            framework=self.title,
            version=request.version,
            algorithm="PPO",
            passes=passes,
            prompts_per_rollout=samples,
            samples_per_prompt=1,
            minibatches=tuple(size * world_size for size in accumulation.minibatches),
            world_size=world_size,
            reuse_epochs=accumulation.passes,
            samples_per_microbatch=micro * world_size,
            remainder="flush" if accumulation.window > 1 else "error",
            flush=Flush(rollouts_per_epoch=passes.per_epoch) if accumulation.window > 1 and passes.per_epoch else None,
            old_logprob_source="at_rollout",
            reference_source="at_rollout",
            lags=accumulation.flushed_lags if accumulation.window > 1 and passes.rollouts != 0 else accumulation.lags,
            lr_clock="rollout",
            lr_horizon=horizon,
            settings=settings.written(*_IN_PLAN),
            formulas=formulas,
            not_evaluated=unknown,
        )
        return Reading(
            schedule=msgspec.structs.replace(schedule, updates=updates),
            formulas=formulas,
            notes=tuple(_notes(accumulation, passes, horizon)),
            facts=_facts(request, horizon) | {"nominal_updates_per_rollout": schedule.updates_per_rollout},
        )


def _processes(request: Request) -> int:
    """One for each GPU, unless the launch says how many (cli.py `main`, launcher.py `launch`)."""
    command = request.command
    if request.world_size_given is not None or command.processes is not None or command.program.kind == "config":
        return request.world_size()
    if command.program.kind != "executable":
        return request.world_size()  # `python src/train.py` starts no torchrun
    devices = processes.of_environment(command, without=processes.visible_devices(command))
    if devices is None:
        raise processes.from_machine(command.program.name)
    return devices


def _passes(request: Request, rows: int | None, why: str, samples: int) -> tuple[Passes, int | None]:
    """Rollouts, and the horizon of the learning rate, which is worked out from other roundings.

    Raises:
        PlanError: The loader has no batch.
    """
    settings = request.settings
    most = settings.count("max_steps", least=-1)
    epochs = settings.number("num_train_epochs")
    if rows is None:
        return Passes.dropping(
            None, samples, epochs=1, limit=most if most > 0 else None, why=why
        ), most if most > 0 else None
    per_epoch = rows // samples
    if most > 0 and per_epoch == 0:
        raise PlanError(
            f"StopIteration: {rows} rows do not fill a batch of {samples}, and the loader drops it",
            when="at the first rollout",
            fix=f"at most {rows} samples for each rollout, or {samples} rows",
            source=f"{_TRAINER} ppo_train",
        )
    rollouts = most if most > 0 else math.ceil(epochs * per_epoch)
    horizon = most if most > 0 else math.ceil(epochs * -(-rows // samples))
    passes = Passes.wrapping(rows, samples, rollouts=rollouts)
    return msgspec.structs.replace(passes, per_epoch=per_epoch, dropped=rows - per_epoch * samples), horizon


def _updates(accumulation: Accumulation, passes: Passes) -> tuple[int | None, dict[str, str]]:
    if passes.rollouts is None:
        return None, {}
    if accumulation.window == 1:
        return passes.rollouts * accumulation.per_rollout, {}
    if passes.per_epoch is None:
        return None, {"updates": "the last rollout of each pass over the rows makes more updates; give --rows"}
    if not passes.per_epoch:
        return 0, {}
    try:
        return updates_of_run(accumulation, Flush(rollouts_per_epoch=passes.per_epoch), rollouts=passes.rollouts), {}
    except OverflowError as error:
        return None, {"updates": str(error)}


def _formulas(passes: Passes, horizon: int | None) -> tuple[Formula, ...]:
    formulas = [
        Formula(
            "samples_per_rollout",
            "per_device_train_batch_size * gradient_accumulation_steps * ppo_buffer_size * world_size",
            f"{_TRAINER} ppo_train total_train_batch_size",
        ),
        Formula("updates_per_rollout", "ppo_epochs * ppo_buffer_size", _STEP),
        Formula(
            "samples_per_update",
            "per_device_train_batch_size * gradient_accumulation_steps * world_size",
            f"{_TRAINER} CustomPPOTrainer.__init__ backward_batch_size",
        ),
        Formula("lr_ticks", "rollouts", f"{_TRAINER} step_scheduler_with_optimizer=False"),
    ]
    if passes.per_epoch:
        more = "floor(rollouts / rollouts_per_epoch) * updates_per_rollout * (gradient_accumulation_steps - 1)"
        formulas += [
            Formula(
                "rollouts_per_epoch",
                "floor(rows / samples_per_rollout)",
                "trl 0.9.6 PPOTrainer.prepare_dataloader (drop_last)",
            ),
            Formula("updates", f"rollouts * updates_per_rollout + {more}", f"{_STEP}; accelerate _do_sync"),
        ]
        if horizon != passes.rollouts:
            formulas.append(
                Formula(
                    "lr_horizon",
                    "ceil(num_train_epochs * ceil(rows / samples_per_rollout))",
                    f"{_TRAINER} CustomPPOTrainer.__init__ num_training_steps",
                )
            )
    return tuple(formulas)


def _notes(accumulation: Accumulation, passes: Passes, horizon: int | None) -> list[Note]:
    notes = [
        Note(
            "unit",
            "ppo_buffer_size is the number of mini-batches of a rollout; logging_steps and save_steps count rollouts",
        )
    ]
    if accumulation.window > 1:
        notes.append(
            Note(
                "grows",
                "in the last rollout of each pass over the rows every micro-batch is an update, "
                f"{accumulation.per_rollout} in all (accelerate without DeepSpeed)",
            )
        )
    if passes.dropped:
        notes.append(Note("drops", f"{passes.dropped} of {passes.rows} rows in each pass, others each time"))
    if horizon is not None and passes.rollouts is not None and horizon > passes.rollouts:
        notes.append(
            Note("assumes", f"the learning rate is planned for {horizon} rollouts, and {passes.rollouts} are made")
        )
    return notes


def _facts(request: Request, horizon: int | None) -> dict[str, Any]:
    settings = request.settings
    facts = learning_rate_facts(settings, horizon)
    every = settings.number("save_steps")
    if every >= 1:
        facts["save_every"] = int(every)
    return facts


READER = LLaMAFactory()
