"""LLaMA-Factory's PPO: TRL's old `step()` with sizes of its own; its "step" is a rollout, and its LR horizon is rounded up.

Read in the wheels of 0.9.3 and 0.9.5: llamafactory/train/ppo/trainer.py `CustomPPOTrainer` (sizes, `ppo_train`),
hparams/finetuning_args.py (defaults), cli.py and launcher.py (processes); and in trl 0.9.6 trl/trainer/ppo_trainer.py `step`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.launch import processes
from rlstep_hooks.systems.engine.declaration import Check, Demand, Entry, Formula, Note, System, count, number, text
from rlstep_hooks.systems.engine.links import no
from rlstep_hooks.systems.trl_ppo_step.links import LINKS as STEP_LINKS
from rlstep_hooks.systems.trl_ppo_step.links import RULES as STEP_RULES
from rlstep_hooks.systems.trl_ppo_step.system import ALWAYS, FLUSHED, flush_after

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.request import Request

_TRAINER = "LLaMA-Factory 0.9.3 llamafactory/train/ppo/trainer.py"
_STEP = "trl 0.9.6 trl/trainer/ppo_trainer.py step"


def started_processes(launch: Request) -> int | None:
    """Processes that `llamafactory-cli` starts: one for each GPU, unless the launch says how many (cli.py `main`, launcher.py
    `launch`).

    None if something else starts them: `python src/train.py` starts no torchrun.
    """
    command = launch.command
    if launch.world_size_given is not None or command.processes is not None or command.program.kind != "executable":
        return None
    devices = processes.of_environment(command, without=processes.visible_devices(command))
    if devices is None:
        raise processes.from_machine(command.program.name)
    return devices


PACKAGE = "llamafactory"

SYSTEM = System(
    name="llamafactory",
    title="LLaMA-Factory",
    version="0.9.3",
    recognised=(
        Entry(
            "llamafactory",
            programs=(
                "executable:llamafactory-cli train",
                "module:llamafactory.cli",
                "script:src/train.py",
                "script:src/train_bash.py",
            ),
            keys=("ppo_buffer_size", "stage=ppo"),
        ),
    ),
    trains=("run_exp",),  # LLaMA-Factory 0.9.3 src/train.py; scripts of others have this name too
    overrides=True,
    settings={
        "stage": text("sft"),
        "per_device_train_batch_size": count(8),
        "gradient_accumulation_steps": count(1),
        "ppo_buffer_size": count(1),
        "ppo_epochs": count(4),
        "max_steps": count(-1, least=-1),
        "num_train_epochs": number(3.0),
        "val_size": number(0),
        "eval_dataset": text(None),
        "lr_scheduler_type": text("linear"),
        "warmup_steps": number(0),
        "warmup_ratio": number(0),
        "save_steps": number(500),
    },
    shown=(
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "ppo_buffer_size",
        "ppo_epochs",
        "max_steps",
        "num_train_epochs",
    ),
    functions={"started_processes": started_processes, "flush_after": flush_after},
    let={
        "processes": "started_processes(launch)",
        "prompts_per_rollout": "samples_per_rollout",
        "reuse_epochs": "ppo_epochs",
        "samples_per_microbatch": "per_device_train_batch_size * world_size",
        **FLUSHED,
        "microbatches": "ppo_epochs * ppo_buffer_size * gradient_accumulation_steps",
        "lags": "range(microbatches) if flushes and not (known(rollouts) and rollouts == 0) else None",
    },
    always=ALWAYS,
    formulas=(
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
        Formula(
            "rollouts_per_epoch",
            "floor(rows / samples_per_rollout)",
            "trl 0.9.6 PPOTrainer.prepare_dataloader (drop_last)",
        ),
        Formula(
            "rows_reshuffled", "True", "trl 0.9.6 trl/trainer/ppo_trainer.py:420 prepare_dataloader (shuffle=True)"
        ),
        Formula(
            "rollouts",
            "max_steps if max_steps > 0 else ceil(num_train_epochs * rollouts_per_epoch)",
            f"{_TRAINER} ppo_train",
        ),
        Formula("updates", "rollouts * updates_per_rollout", _STEP, where="not flushes"),
        Formula(
            "updates",
            "rollouts * updates_per_rollout + whole_passes * updates_per_rollout * (gradient_accumulation_steps - 1)",
            f"{_STEP}; accelerate _do_sync",
        ),
        Formula("lr_ticks", "rollouts", f"{_TRAINER} step_scheduler_with_optimizer=False"),
        Formula(
            "lr_horizon",
            "max_steps if max_steps > 0 else ceil(num_train_epochs * ceil(rows / samples_per_rollout))",
            f"{_TRAINER} CustomPPOTrainer.__init__ num_training_steps",
        ),
    ),
    checks=(
        Demand("stage == 'ppo'", "stage = {stage}: only `stage: ppo` is reinforcement learning here", about="stage"),
        Check(
            "val_size <= 0 and eval_dataset is None",
            "PPOTrainer does not support eval dataset yet.",
            fix="no val_size and no eval_dataset",
            when="when the trainer is built",
            source=f"{_TRAINER} CustomPPOTrainer.__init__",
        ),
        Check(
            "rollouts_per_epoch > 0",
            "StopIteration: {rows} rows do not fill a batch of {samples_per_rollout}, and the loader drops it",
            fix="at most {rows} samples for each rollout, or {samples_per_rollout} rows",
            when="at the first rollout",
            source=f"{_TRAINER} ppo_train",
            where="max_steps > 0",
        ),
    ),
    notes=(
        Note(
            "reference",
            "ref_model where it is given; else, with LoRA (finetuning_type: lora, the default), the base model, adapter switched "
            "off; with full fine-tuning a second model",
        ),
        Note(
            "ratio",
            "old log-probs are computed in training mode (train/ppo/trainer.py: model.train() before step): with dropout, of the model "
            "or of LoRA, the ratio at lag 0 is not 1 (RLS301 measures it)",
        ),
        Note(
            "unit",
            "ppo_buffer_size is the number of mini-batches of a rollout; logging_steps and save_steps count rollouts",
        ),
        Note(
            "grows",
            "in the last rollout of each pass over the rows every micro-batch is an update, {microbatches} in all "
            "(accelerate without DeepSpeed)",
            "flushes",
        ),
        Note(
            "drops",
            "{rows % samples_per_rollout} of {rows} rows in each pass, a different set each pass",
            "rows % samples_per_rollout",
        ),
        Note(
            "assumes",
            "the learning rate is planned for {lr_horizon} rollouts, and {rollouts} are made",
            "lr_horizon > rollouts",
        ),
    ),
    facts={
        "lr_constant": "starts(lr_scheduler_type, 'constant')",
        "lr_warmup": "ceil(warmup_steps if warmup_steps >= 1 or not known(lr_horizon) "
        "else (warmup_steps or warmup_ratio) * lr_horizon)",
        "save_every": "floor(save_steps) if save_steps >= 1 else None",
        "nominal_updates_per_rollout": "updates_per_rollout",
    },
    package=PACKAGE,
    deviations="rlstep_hooks.systems.llamafactory.deviations:DEVIATIONS",
    # 0.9.3 pins TRL 0.9.6 at most. 0.9.4 and 0.9.5 pin TRL 0.18 or later, and their PPO refuses that.
    trained_releases=("0.9.3",),
    observed_releases=("0.9.3", "0.9.4"),
    knobs={
        "learning_rate": "learning_rate",
        "rate_schedule": "lr_scheduler_type",
        "warmup": "warmup_steps",
        "gradient_limit": "max_grad_norm",
        "passes": "ppo_epochs",
        "updates": "ppo_buffer_size",
        "temperature": "temperature",
        "length": "num_train_epochs",
    },
    attaches_by="`rlstep run -- llamafactory-cli train ...`.",
    on_import={"llamafactory.train.ppo.trainer": "rlstep_hooks.systems.llamafactory.observe.audit:audit_ppo"},
    observes=("rollouts", "old log-probs", "micro-batches", "updates", "advantages", "learning rate", "weights"),
    links={
        **STEP_LINKS,
        "settings in force": no("its trainer builds its own optimizer"),
        "rewards on the way": no("the trainer scores and hands over to step() in one method"),
        "mask": no("LLaMA-Factory makes them of its templates"),
        "learning rate": no("the schedule of its launch is not read"),
        "sampler": no("its settings are not looked at"),
    },
    rules=STEP_RULES,
    does_not_observe=(
        "how samples are drawn, and with which weights",
        "the reference model's log-probs",
        "rewards",
        "updates made by DeepSpeed's engine",
        "stages other than ppo",
    ),
)
