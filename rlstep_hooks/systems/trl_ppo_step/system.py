"""TRL's first PPOTrainer, whose `step()` a script calls itself (up to 0.11): the length of the run is the script's own.

One call of `step()` is a rollout with its updates. The number of calls is known for stack_llama's script only.

Read in the wheels of 0.9.6 and 0.11.4: trl/trainer/ppo_config.py (the dataclass and `__post_init__`), ppo_trainer.py `step`; and in the
repository at 0b972a6 examples/research_projects/stack_llama/scripts/rl_training.py, whose loop is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.planning.accumulation import carried_lags, flushed_lags
from rlstep_hooks.planning.schedule import Flush
from rlstep_hooks.systems.engine.declaration import Check, Depends, Entry, Formula, Note, System, count, flag
from rlstep_hooks.systems.trl_ppo_step.links import LINKS, RULES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.systems.engine.request import Request

_CONFIG = "trl 0.11.4 trl/trainer/ppo_config.py __post_init__"
_TRAINER = "trl 0.11.4 trl/trainer/ppo_trainer.py"
_OPEN = "unknown('the script decides how often it calls step()')"

STACK_LLAMA: dict[str, Any] = {"batch_size": 32, "mini_batch_size": 1, "gradient_accumulation_steps": 4, "steps": 20000}
"""Defaults of stack_llama's rl_training.py where they are not those of PPOConfig."""

ALWAYS: dict[str, Any] = {
    "algorithm": "PPO",
    "samples_per_prompt": 1,
    "loader": "drops",
    "old_logprob_source": "at_rollout",
    "reference_source": "at_rollout",
    "lr_clock": "rollout",
}
"""What holds for each run of this trainer and of trainers that derive from it."""

FLUSHED = {
    "flushes": "gradient_accumulation_steps > 1",
    "remainder": "'flush' if flushes else 'error'",
    "flush": "flush_after(rollouts_per_epoch) if flushes and known(rows) and rollouts_per_epoch else None",
    "whole_passes": "unknown('the last rollout of each pass over the rows makes more updates; give --rows') if not known(rows) "
    "else floor(rollouts / rollouts_per_epoch) if rollouts_per_epoch else 0",
}
"""accelerate ends an update at every micro-batch while the loader is at its last batch, which is a whole rollout long. The expressions
call `flush_after`."""


def flush_after(rollouts_per_epoch: int) -> Flush:
    """The rollouts in which every micro-batch is an update: the last one of each pass of the loader."""
    return Flush(rollouts_per_epoch=rollouts_per_epoch)


def own_defaults(request: Request) -> Mapping[str, Any]:
    """Defaults of a script whose loop is known; no defaults for any other."""
    return STACK_LLAMA if request.command.program.matches("script:stack_llama/scripts/rl_training.py") else {}


def size(launch: Request, name: str) -> int:
    """A flag of the script, which fills the arguments of its call with it."""
    return launch.settings.count(name)


SYSTEM = System(
    name="trl_ppo_step",
    title="TRL PPO step()",
    framework="TRL",
    version="0.11.4",
    releases=("0.4", "0.12"),
    other_releases="later ones have no step(); --framework trl_ppo reads their PPOTrainer",
    package="trl",
    commits="trl/commits.json",
    trainers={"PPOTrainer": ("prepare_dataloader", "step")},
    recognised=(
        Entry(
            "trl_ppo_step",
            programs=("script:stack_llama/scripts/rl_training.py", "script:examples/scripts/ppo.py"),
            keys=("PPOConfig.mini_batch_size", "PPOConfig.ppo_epochs", "PPOConfig.batch_size"),
            packages=("trl",),
        ),
    ),
    keywords_of=("PPOConfig",),
    defaults_of=own_defaults,
    settings={
        "batch_size": count(128),
        "mini_batch_size": count(128),
        "forward_batch_size": count(None, where="given(forward_batch_size)"),
        "gradient_accumulation_steps": count(1),
        "ppo_epochs": count(4),
        "early_stopping": flag(False),
        "steps": count(where="own_loop"),
    },
    functions={
        "has_own_loop": lambda launch: bool(own_defaults(launch)),
        "size": size,
        "carried_lags": carried_lags,
        "flushed_lags": flushed_lags,
        "flush_after": flush_after,
    },
    shown=("batch_size", "mini_batch_size", "forward_batch_size", "gradient_accumulation_steps", "ppo_epochs"),
    let={
        "own_loop": "has_own_loop(launch)",
        **{
            name: f"size(launch, '{name}') if own_loop else {name}"
            for name in ("batch_size", "mini_batch_size", "gradient_accumulation_steps")
        },
        "micro_batch": "forward_batch_size or mini_batch_size",
        "samples_per_microbatch": "micro_batch * world_size",
        "microbatches_per_update": "gradient_accumulation_steps",
        "prompts_per_rollout": "samples_per_rollout",
        "reuse_epochs": "ppo_epochs",
        "minibatches": "slices(samples_per_rollout, samples_per_update)",
        "microbatches_per_rollout": "updates_per_rollout * gradient_accumulation_steps",
        "updates_bound": "'upper' if early_stopping else 'exact'",
        **FLUSHED,
        "lags": "flushed_lags(microbatches_per_rollout, gradient_accumulation_steps) if flushes "
        "else carried_lags(microbatches_per_rollout, gradient_accumulation_steps)",
        "rows_dropped_per_epoch": "rows % prompts_per_rollout",
    },
    always=ALWAYS,
    formulas=(
        Formula("samples_per_rollout", "batch_size * world_size", f"{_TRAINER} global_batch_size"),
        Formula("samples_per_update", "micro_batch * gradient_accumulation_steps * world_size", _CONFIG),
        Formula(
            "updates_per_rollout",
            "ppo_epochs * batch_size / (micro_batch * gradient_accumulation_steps)",
            f"{_TRAINER} step",
        ),
        Formula(
            "rollouts_per_epoch", "floor(rows / prompts_per_rollout)", f"{_TRAINER} prepare_dataloader (drop_last)"
        ),
        Formula("rows_reshuffled", "True", f"{_TRAINER}:427 prepare_dataloader (shuffle=True)"),
        Formula(
            "rollouts",
            f"limited(rollouts_per_epoch, ceil(steps / batch_size)) if own_loop else {_OPEN}",
            "trl 0b972a6 examples/research_projects/stack_llama/scripts/rl_training.py",
        ),
        Formula("updates", "rollouts * updates_per_rollout", f"{_TRAINER} step", where="not flushes"),
        Formula(
            "updates",
            "rollouts * updates_per_rollout + whole_passes * updates_per_rollout * (gradient_accumulation_steps - 1)",
            f"{_TRAINER} step; accelerate _do_sync",
        ),
        Formula("lr_ticks", "rollouts", f"{_TRAINER} step"),
    ),
    depends=(
        # The plan gives a bound (`updates_bound`).
        Depends(
            on="early_stopping",
            says="early_stopping ends the passes over a rollout once the KL is above 1.5 times target_kl",
            counts=(),
            source="trl {version} trainer/ppo_trainer.py _early_stop",
        ),
    ),
    checks=(
        Check(
            "batch_size % (micro_batch * gradient_accumulation_steps) == 0",
            "`batch_size` must be a multiple of `mini_batch_size * gradient_accumulation_steps`, inexact division: {batch_size} / "
            "{micro_batch * gradient_accumulation_steps} = {decimal(batch_size / (micro_batch * gradient_accumulation_steps))}",
            fix="batch_size = {multiples(batch_size, micro_batch * gradient_accumulation_steps)}",
            when="when the configuration is built",
            source=_CONFIG,
        ),
    ),
    notes=(
        Note(
            "reference",
            "`ref_model` where the trainer gets one; without it a frozen copy of the model, or, with a LoRA adapter, the base "
            "model, the adapter switched off (trl 0.11.4 ppo_trainer.py __init__)",
        ),
        Note(
            "ratio",
            "the trainer leaves the model in training mode, also for old log-probs: with dropout the ratio at lag 0 is not 1 (RLS301)",
        ),
        Note("unit", "mini_batch_size is the micro-batch; an update takes gradient_accumulation_steps of them"),
        Note(
            "ignores",
            "steps: step() does not read it; the script's own loop ends the run",
            "given(steps) and not own_loop",
        ),
        Note(
            "grows",
            "where the script goes through ppo_trainer.dataloader, every micro-batch of the last rollout of a pass is an update, "
            "{microbatches_per_rollout} in all (accelerate without DeepSpeed)",
            "flushes",
        ),
        Note(
            "shrinks",
            "early_stopping ends the passes over a rollout once the KL is above 1.5 x target_kl",
            "early_stopping",
        ),
        Note(
            "unit",
            "a learning-rate scheduler given to the trainer ticks {world_size} times for each step()",
            "world_size > 1",
        ),
    ),
    facts={
        "lr_constant": "1 == 1",
        "nominal_updates_per_rollout": "updates_per_rollout",
        "more_updates": "'ppo_epochs above 1, or mini_batch_size below batch_size,'",
    },
    knobs={
        "learning_rate": "learning_rate",
        "gradient_limit": "max_grad_norm",
        "kl_coefficient": "init_kl_coef",
        "clip": "cliprange",
        "passes": "ppo_epochs",
        "updates": "mini_batch_size",
        "early_stop": "target_kl",
        "length": "steps",
    },
    attaches_by="`with StepAuditPPO(ppo_trainer) as audit:` around the loop that calls `step()`.",
    observed_releases=("0.9", "0.12"),
    trained_releases=("0.11.4",),
    observes=(
        "calls of `step()` as rollouts",
        "refreshes of old log-probs",
        "micro-batches",
        "updates",
        "learning rate",
        "weights",
    ),
    links=LINKS,
    rules=RULES,
    does_not_observe=(
        "how the script samples",
        "how often it calls `step()`",
        "reference log-probs",
        "updates made by DeepSpeed's engine",
    ),
)
