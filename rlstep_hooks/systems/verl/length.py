"""How many rows a rollout takes, and how long training goes on. Lines are those of verl 0.9.1 unless another release is named."""

from __future__ import annotations

from fractions import Fraction


def ratio(value: int, other: int) -> str:
    """One number in another, in words: "9/2"."""
    return str(Fraction(value, other))


LENGTH: dict[str, str] = {
    # The V1 trainers put batches of the loader together, one prompt at a time where an exact number can be replaced
    # (trainer_base.py:727-739, 1479-1494): groups without signal (filter_groups), or that failed. RayPPOTrainer trains what its loader
    # gives.
    "filters": "v1 and algorithm.filter_groups.enable",
    "refills": "synchronous and trainer.v1.sampler.sync_refill_failed_groups",
    "single": "filters or refills or colocated or separate",
    "loader_batch": "1 if single else (data.gen_batch_size or data.train_batch_size) if has_loader_batch and not filtered "
    "else data.train_batch_size",
    "prompts": "data.train_batch_size if v1 else loader_batch",
    # DAPO's recipe with filter_groups: whole batches of the loader are generated until enough prompts are left. Its length counts
    # batches of the loader (`_create_dataloader`), and so does the learning-rate schedule.
    "filtered": "dapo and algorithm.filter_groups.enable",
    "batches": "rows // (data.gen_batch_size or data.train_batch_size) * trainer.total_epochs",
    "any_number": "unknown('filtering decides how many of ' + quoted(batches) + ' generated batches make a rollout: at most ' "
    "+ quoted(min(batches, trainer.total_training_steps or batches)) + ' rollouts')",
    "rows": "min(rows, data.train_max_samples) if data.train_max_samples > 0 else rows",
    "rows_reshuffled": "data.shuffle",
    "rows_bound": "'data_dependent' if filtered or single else 'exact'",
    "loader_rows": "floor(rows / loader_batch) * loader_batch",
    "rollouts_per_epoch": "any_number if filtered "
    "else unknown('how many rows a rollout takes from the loader depends on the run') if single and known(rows) "
    "else loader_rows / prompts if loader_rows % prompts == 0 "
    "else unknown('a pass of the loader, in batches of ' + quoted(loader_batch) + ', ends within a rollout: after ' "
    "+ ratio(loader_rows, prompts) + ' rollouts')",
    # V1: D // T rollouts in an epoch whatever the loader's batch, until `total_epochs` or `total_training_steps` is reached
    # (trainer_base.py:765-772 and :467). RayPPOTrainer: one rollout for each batch of a loader that drops the last one if it is not
    # full (ray_trainer.py:405-412), and at least one.
    "available": "any_number if filtered else floor(rows / prompts_per_rollout) * trainer.total_epochs",
    "steps": "trainer.total_training_steps if trainer.total_training_steps is not None and known(available) else available",
    "used": "rollouts * prompts_per_rollout",
    "replaced": "unknown('prompts are dropped and replaced as the run goes; at least ' + quoted(used) + ' of ' + quoted(rows) "
    "+ ' rows are used')",
    "data_epochs": "0 if evaluates_only else replaced if single else used / rows",
    "loader_epochs": "0 if evaluates_only else replaced if single else used / loader_rows",
    # separate_async updates the policy `parameter_sync_step` times for each rollout, each in a call of its own.
    # It takes a rollout in as many parts (trainer_base.py:536-562 `step`).
    "parts_per_rollout": "calls",
    # One tick for each call (engine_workers.py:308).
    "lr_clock": "'rollout' if calls == 1 else 'update' if reuse_epochs == 1 else 'part'",
    "critic.lr_clock": "'rollout' if calls == 1 else 'update' if critic.reuse_epochs * len(critic.minibatches) == calls else 'part'",
    "critic.parts_per_rollout": "calls",
    "calls": "(trainer.v1.separate_async.parameter_sync_step or 4) if separate else 1",
}
"""Quantities of `rlstep_hooks.systems.verl.system`."""
