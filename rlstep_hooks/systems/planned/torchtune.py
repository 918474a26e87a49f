"""torchtune, PPO and GRPO (dev): `num_steps` counts samples in one recipe and rollouts in the other; each size must divide the next.

Read at commit bd2a0fc (2026-04-23): recipes/ppo_full_finetune_single_device.py, recipes/dev/grpo_full_finetune_distributed.py, and the
configurations in recipes/configs that run them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.engine.declaration import (
    REQUIRED,
    Check,
    Demand,
    Entry,
    Formula,
    Note,
    System,
    count,
    flag,
    text,
)

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.request import Request

_PPO = "torchtune bd2a0fc recipes/ppo_full_finetune_single_device.py"
_GRPO = "torchtune bd2a0fc recipes/dev/grpo_full_finetune_distributed.py"

SHIPPED: dict[str, dict[str, Any]] = {
    "mistral/7B_full_ppo_low_memory": {
        "batch_size": 128,
        "ppo_batch_size": 128,
        "ppo_epochs": 1,
        "num_steps": 10_000,
        "forward_batch_size": 128,
        "gradient_accumulation_steps": 1,
        "optimizer_in_bwd": True,
        "shuffle": True,
        "lr_scheduler._component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup",
        "lr_scheduler.num_warmup_steps": 100,
    },
    "llama2/1B_full_ppo_low_memory_single_device": {
        "batch_size": 16,
        "ppo_batch_size": 16,
        "ppo_epochs": 1,
        "num_steps": 1000,
        "forward_batch_size": 16,
        "gradient_accumulation_steps": 1,
        "optimizer_in_bwd": True,
        "shuffle": True,
    },
    "dev/3B_full_grpo": {
        "batch_size": 1,
        "grpo_samples": 16,
        "ppo_epochs": 1,
        "num_steps": 200,
        "epochs": 10,
        "forward_batch_size": 1,
        "shuffle": False,
        "lr_scheduler._component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup",
        "lr_scheduler.num_warmup_steps": 50,
    },
}
"""Configurations that come with torchtune and are named without a file."""


def _shipped(launch: Request) -> dict[str, Any]:
    """The values of the configuration that is named; the recipes themselves have no defaults."""
    return SHIPPED.get((launch.settings.text("config") or "").removesuffix(".yaml"), {})


def _checked(holds: str, says: str, fix: str) -> Check:
    """A condition of the PPO recipe."""
    return Check(
        holds,
        says,
        fix=fix,
        when="at start-up, when the parameters are set up",
        source=f"{_PPO} _setup_training_hyperparameters",
        where="ppo",
    )


SYSTEM = System(
    name="torchtune",
    title="torchtune",
    version="bd2a0fc",
    recognised=(
        Entry(
            "torchtune",
            programs=(
                "executable:tune run *ppo*",
                "executable:tune run *grpo*",
                "script:ppo_full_finetune_single_device.py",
                "script:grpo_full_finetune_distributed.py",
            ),
            keys=("ppo_batch_size", "grpo_samples", "orchestration.num_training_workers"),
        ),
    ),
    overrides=True,
    defaults_of=_shipped,
    settings={
        "batch_size": count(REQUIRED, where="ppo or grpo"),
        "ppo_batch_size": count(REQUIRED, where="ppo"),
        "gradient_accumulation_steps": count(REQUIRED, where="ppo"),
        "grpo_samples": count(REQUIRED, where="grpo"),
        "ppo_epochs": count(REQUIRED, where="ppo or grpo"),
        "epochs": count(REQUIRED, where="grpo"),
        "num_steps": count(REQUIRED, where="ppo or grpo"),
        "forward_batch_size": count(REQUIRED, where="ppo or grpo"),
        "optimizer_in_bwd": flag(where="ppo"),
        "orchestration.num_training_workers": count(),
        "shuffle": flag(REQUIRED, where="ppo or grpo"),
        "lr_scheduler._component_": text(),
        "lr_scheduler.num_warmup_steps": count(least=0),
    },
    shown=(
        "batch_size",
        "ppo_batch_size",
        "gradient_accumulation_steps",
        "grpo_samples",
        "ppo_epochs",
        "epochs",
        "num_steps",
    ),
    let={
        "asynchronous": "'async_grpo' in program or given(orchestration.num_training_workers)",
        "grpo": "not asynchronous and ('grpo' in program or 'ppo' not in program and given(grpo_samples))",
        "ppo": "not asynchronous and not grpo",
        "algorithm": "'PPO' if ppo else 'GRPO'",
        "world_size": "1 if ppo else world_size",
        "prompts_per_rollout": "batch_size * world_size",
        "samples_per_prompt": "1 if ppo else grpo_samples",
        "reuse_epochs": "ppo_epochs",
        "samples_per_microbatch": "ppo_batch_size // gradient_accumulation_steps if ppo else samples_per_rollout",
        "rows_of_rollouts": "rollouts_per_epoch * prompts_per_rollout",
        "rows_dropped_per_epoch": "max(rows - rows_of_rollouts, 0)",
        "rows_drawn_twice": "max(rows_of_rollouts - rows, 0)",
        "rows_reshuffled": "shuffle",
        "counted": "'samples' if ppo else 'rollouts'",
    },
    always={
        "loader": "drops",
        "old_logprob_source": "at_rollout",
        "reference_source": "at_rollout",
        "step_unit": "update",
        "step_means": "1 step of the logs = 1 update; num_steps counts {counted}",
    },
    formulas=(
        Formula("samples_per_rollout", "batch_size", f"{_PPO} train", where="ppo"),
        Formula("samples_per_rollout", "batch_size * world_size * grpo_samples", f"{_GRPO} generate_trajectory"),
        Formula("samples_per_update", "ppo_batch_size", f"{_PPO} train", where="ppo"),
        Formula("samples_per_update", "samples_per_rollout", f"{_GRPO} train"),
        Formula("updates_per_rollout", "ppo_epochs * batch_size / ppo_batch_size", f"{_PPO} train", where="ppo"),
        Formula("updates_per_rollout", "ppo_epochs", f"{_GRPO} train"),
        Formula("rollouts_per_epoch", "floor(rows / batch_size)", f"{_PPO} _setup_data (drop_last)", where="ppo"),
        # All processes get the same number of rows, so some rows come twice. The last batch is dropped if it is not full.
        Formula(
            "rollouts_per_epoch",
            "floor(ceil(rows / world_size) / batch_size)",
            f"{_GRPO} _setup_data (StatefulDistributedSampler, drop_last)",
        ),
        Formula(
            "rollouts",
            "0 if known(rows) and rows < batch_size else floor(num_steps / batch_size)",
            f"{_PPO} _setup_training_hyperparameters",
            where="ppo",
        ),
        Formula("rollouts", "limited(epochs * rollouts_per_epoch, num_steps)", f"{_GRPO} train"),
        Formula("lr_ticks", "rollouts * ppo_epochs", f"{_GRPO} train", where="grpo"),
        Formula(
            "lr_horizon",
            "floor(num_steps / batch_size) * ppo_epochs * floor(batch_size / ppo_batch_size)",
            f"{_PPO} setup",
            where="ppo",
        ),
        Formula("lr_horizon", "epochs * rollouts_per_epoch", f"{_GRPO} setup (without ppo_epochs and num_steps)"),
    ),
    checks=(
        Demand("not asynchronous", "async_grpo_full_finetune_distributed is another recipe, which is not known here"),
        _checked(
            "batch_size % forward_batch_size == 0",
            "batch_size ({batch_size}) must be exactly divisible by forward_batch_size ({forward_batch_size}).",
            "forward_batch_size = {nearest(forward_batch_size, batch_size % it == 0)}",
        ),
        _checked(
            "batch_size % ppo_batch_size == 0",
            "batch_size ({batch_size}) must be exactly divisible by ppo_batch_size ({ppo_batch_size}).",
            "ppo_batch_size = {nearest(ppo_batch_size, batch_size % it == 0)}",
        ),
        _checked(
            "ppo_batch_size % gradient_accumulation_steps == 0",
            "ppo_batch_size ({ppo_batch_size}) must be exactly divisible by gradient_accumulation_steps "
            "({gradient_accumulation_steps}).",
            "gradient_accumulation_steps = {nearest(gradient_accumulation_steps, ppo_batch_size % it == 0)}",
        ),
        _checked(
            "gradient_accumulation_steps == 1 or not optimizer_in_bwd",
            "Gradient accumulation is not supported with optimizer in bwd.",
            "gradient_accumulation_steps = 1, or optimizer_in_bwd = False",
        ),
        _checked(
            "num_steps >= batch_size",
            "num_steps {num_steps} must be greater than the batch size {batch_size}.",
            "num_steps = {batch_size} or more; it counts samples",
        ),
    ),
    notes=(
        Note(
            "unit",
            "num_steps counts samples: {num_steps} are {num_steps // batch_size} rollouts of {batch_size}",
            "ppo",
        ),
        Note("unit", "policy and value model share one optimizer, and so their updates", "ppo"),
        Note(
            "drops",
            "{num_steps % batch_size} of num_steps = {num_steps} samples do not fill a rollout",
            "ppo and num_steps % batch_size",
        ),
        Note(
            "unit",
            "num_steps counts rollouts, batch_size counts prompts of each of the {world_size} processes",
            "grpo",
        ),
        Note(
            "pads",
            "{rows_drawn_twice} rows of each pass are drawn twice so that every process gets the same number",
            "grpo and rows_drawn_twice",
        ),
        Note(
            "assumes",
            "there are enough rows for num_steps = {num_steps} rollouts; give --rows",
            "grpo and not known(rows)",
        ),
    ),
    facts={
        "lr_constant": "lr_scheduler._component_ is None",
        "lr_warmup": "0 if lr_scheduler._component_ is None else lr_scheduler.num_warmup_steps",
    },
)
