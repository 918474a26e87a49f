"""NeMo-Aligner, PPO and REINFORCE: rollouts and mini-batches divide or the run ends, one learning-rate tick an update.

Read at commit af2b3bd (2025-05-16): examples/nlp/gpt/conf/gpt_ppo_actor.yaml and gpt_reinforce_actor.yaml (defaults),
nemo_aligner/algorithms/ppo.py and reinforce.py (`fit`, `_run_inference`, `run_training`, `set_max_steps`),
nemo_aligner/utils/trainer_utils.py `compute_num_steps_per_epoch`. The critic is a server with a configuration of its own.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.text import SettingError
from rlstep_hooks.planning.phases import Passes, equal_minibatches, schedule_in_phases
from rlstep_hooks.planning.reading import Formula, Note, Reading, nearest
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.reader import Reader, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.settings import Settings

_COMMIT = "NeMo-Aligner af2b3bd"
_ALGORITHMS = f"{_COMMIT} nemo_aligner/algorithms"

DEFAULTS: dict[str, Any] = {
    "trainer.num_nodes": 8,
    "trainer.devices": 8,
    **{
        f"trainer.{part}.{name}": value
        for part in ("ppo", "reinforce")
        for name, value in {
            "max_epochs": 1,
            "max_steps": -1,
            "val_check_interval": 10,
            "save_interval": f"${{trainer.{part}.val_check_interval}}",
            "initial_policy_kl_penalty": 0.01,
        }.items()
    },
    "trainer.ppo.critic_warmup_steps": 0,
    "trainer.reinforce.num_rollouts_per_prompt": 4,
    "model.ppo.num_rollout_samples": 512,
    "model.ppo.rollout_micro_batch_size": 8,
    "model.reinforce.num_rollout_samples": 512,
    "model.reinforce.rollout_micro_batch_size": 8,
    "model.global_batch_size": 64,
    "model.micro_batch_size": 1,
    "model.tensor_model_parallel_size": 1,
    "model.pipeline_model_parallel_size": 1,
}


class NemoAligner(Reader):
    """NeMo-Aligner's `train_gpt_ppo_actor.py` and `train_gpt_reinforce_actor.py`."""

    name = "nemo_aligner"
    title = "NeMo-Aligner"
    version = "af2b3bd"
    overrides = True

    def defaults(self, version: str) -> Mapping[str, Any]:
        """The values of the configuration of each script; where both differ, those that the plan needs are given."""
        return DEFAULTS

    def read(self, request: Request) -> Reading:
        """The Schedule; see the module for its sources."""
        settings = request.settings
        name = request.command.program.name
        reinforce = "reinforce" in name or settings.is_given(
            "model.reinforce.num_rollout_samples", "trainer.reinforce.num_rollouts_per_prompt"
        )
        part = "reinforce" if reinforce else "ppo"
        prompts = settings.count(f"model.{part}.num_rollout_samples")
        group = settings.count("trainer.reinforce.num_rollouts_per_prompt") if reinforce else 1
        world_size = request.world_size(_processes(settings))
        minibatches = _minibatches(settings, part, prompts, group, world_size)
        warmup = 0 if reinforce else settings.count("trainer.ppo.critic_warmup_steps", least=0)
        passes = _passes(request, part, prompts, warmup)
        formulas = _formulas(part, rows_known=passes.rows is not None)
        schedule = schedule_in_phases(
            framework=self.title,
            version=request.version,
            algorithm=part.upper(),
            passes=passes,
            prompts_per_rollout=prompts,
            samples_per_prompt=group,
            minibatches=minibatches,
            world_size=world_size,
            samples_per_microbatch=settings.count("model.micro_batch_size") * world_size,
            frozen_rollouts=warmup,
            syncs="first_and_after_updates",
            # REINFORCE has no ratio: its loss takes the log-probs of the update alone.
            old_logprob_source="detach" if reinforce else "recompute",
            lags=(0,) if reinforce else None,
            reference_source=(
                "at_rollout" if settings.number(f"trainer.{part}.initial_policy_kl_penalty") > 0 else "none"
            ),
            settings=settings.written(*(n for n in DEFAULTS if f".{_other(part)}." not in n)),
            formulas=formulas,
            not_evaluated={"lr_horizon": "NeMo decides it: see model.optim.sched and trainer.max_steps"},
        )
        return Reading(
            schedule=msgspec.structs.replace(schedule, lr_horizon=None),
            formulas=formulas,
            notes=_notes(part, prompts, group, warmup),
            facts={
                "minibatch_unit": "samples",
                "save_every": settings.count(f"trainer.{part}.save_interval"),
                "eval_every": settings.count(f"trainer.{part}.val_check_interval"),
            },
        )


def _other(part: str) -> str:
    return "reinforce" if part == "ppo" else "ppo"


def _processes(settings: Settings) -> int:
    """Data-parallel processes: GPUs over those that hold one copy of the model.

    Raises:
        SettingError: The copies do not fit on the GPUs.
    """
    gpus = settings.count("trainer.num_nodes") * settings.count("trainer.devices")
    copy = settings.count("model.tensor_model_parallel_size") * settings.count("model.pipeline_model_parallel_size")
    if gpus % copy:
        raise SettingError(f"{gpus} GPUs cannot be shared by copies of the model on {copy} each")
    return gpus // copy


def _minibatches(settings: Settings, part: str, prompts: int, group: int, world_size: int) -> tuple[int, ...]:
    """Samples behind each update.

    Raises:
        PlanError: `divide` refuses the sizes, in the order in which they are met.
    """
    micro = settings.count(f"model.{part}.rollout_micro_batch_size")
    size = settings.count("model.global_batch_size")
    rollout = f"model.{part}.num_rollout_samples"
    rollouts = nearest(prompts, lambda v: v % (micro * world_size) == 0)
    sizes = nearest(size, lambda v: v % world_size == 0 and (prompts * group) % v == 0)
    begins, first = "when training begins", "in the first rollout"
    checks = (
        (size, world_size, begins, f"model.global_batch_size = {sizes}"),
        (prompts, micro, first, f"{rollout} = {rollouts}"),
        (prompts // micro, world_size, first, f"{rollout} = {rollouts}"),
        (
            prompts * group // world_size,
            max(size // world_size, 1),
            "after the first rollout",
            f"model.global_batch_size = {sizes}",
        ),
    )
    for numerator, denominator, when, fix in checks:
        if numerator % denominator:
            raise PlanError(
                f"{numerator} is not divisible by {denominator}",
                when=when,
                fix=fix,
                source=f"{_ALGORITHMS}/{part}.py fit, compute_num_rollout_microbatches (divide)",
            )
    samples = prompts * group
    return equal_minibatches(samples, samples // size)


def _passes(request: Request, part: str, prompts: int, warmup: int) -> Passes:
    """What becomes of the rows; rollouts for the critic alone come before the first step and are not counted as consumed."""
    settings = request.settings
    rows = request.rows()
    epochs = settings.count(f"trainer.{part}.max_epochs")
    most = settings.count(f"trainer.{part}.max_steps", least=-1)
    limit = most if most >= 0 else None
    trained = Passes.dropping(rows.count, prompts, epochs=epochs, limit=limit, why=rows.source)
    if trained.rollouts is None:
        return trained
    consumed = None if rows.count is None else Fraction(trained.rollouts * prompts)
    return msgspec.structs.replace(trained, rollouts=trained.rollouts + warmup, consumed=consumed)


def _formulas(part: str, *, rows_known: bool) -> tuple[Formula, ...]:
    trainer = f"{_ALGORITHMS}/{part}.py"
    group = " * trainer.reinforce.num_rollouts_per_prompt" if part == "reinforce" else ""
    samples = f"model.{part}.num_rollout_samples{group}"
    formulas = [
        Formula("samples_per_rollout", samples, f"{trainer} _run_inference"),
        Formula("samples_per_update", "model.global_batch_size", f"{trainer} fit (model_gbs)"),
        Formula("updates_per_rollout", f"{samples} / model.global_batch_size", f"{trainer} fit (get_iterator_k_split)"),
        Formula("updates", "max(rollouts - frozen_rollouts, 0) * updates_per_rollout", f"{trainer} fit"),
        Formula("lr_ticks", "updates", f"{trainer} run_training (scheduler.step after each update)"),
    ]
    if rows_known:
        source = f"{_COMMIT} nemo_aligner/utils/trainer_utils.py compute_num_steps_per_epoch"
        formulas.append(Formula("rollouts_per_epoch", f"floor(rows / model.{part}.num_rollout_samples)", source))
    return tuple(formulas)


def _notes(part: str, prompts: int, group: int, warmup: int) -> tuple[Note, ...]:
    notes = [
        Note("unit", "train_optim/* is logged at the step of the rollout: the updates of a rollout share one point")
    ]
    if part == "ppo":
        notes.append(
            Note(
                "assumes",
                "the critic is a server of its own: its updates are set in its configuration, not in this launch",
            )
        )
    if warmup:
        notes.append(
            Note(
                "unit",
                f"the first step makes {warmup} rollouts more, for the critic alone; their prompts are drawn again",
            )
        )
    if group > 1:
        notes.append(
            Note(
                "drops",
                f"consumed_samples grows by {prompts * group} samples a rollout, and the loader skips as many prompts: "
                f"{prompts} of every {prompts * group} rows are used",
            )
        )
    return tuple(notes)


READER = NemoAligner()
