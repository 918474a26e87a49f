"""Where a resumed run begins: the position in the plan that a checkpoint's step count means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.timeline import LoaderPosition

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule


def resume_position(schedule: Schedule, *, updates: int, updates_per_epoch: int, skips_data: bool) -> LoaderPosition:
    """The position at which training goes on.

    transformers finds the pass and the micro-batches to skip from `global_step` alone (`Trainer._init_training_state`); the
    samples of an interrupted rollout are not in the checkpoint, so they are generated again and trained for the passes that
    are left.

    Args:
        schedule: The plan.
        updates: `global_step` of the checkpoint.
        updates_per_epoch: Updates of one pass as transformers counts them.
        skips_data: False with `ignore_data_skip`: the pass then begins anew.
    """
    if not updates:
        return LoaderPosition()
    epoch, in_epoch = divmod(updates, max(updates_per_epoch, 1))
    microbatches = in_epoch * schedule.window if skips_data else 0
    cycle = microbatches % schedule.microbatches_per_cycle
    return LoaderPosition(
        updates=updates,
        version=updates,
        cycle=cycle,
        epoch=epoch,
        epoch_microbatches=microbatches,
        regenerates=cycle >= schedule.rollouts_per_cycle,
    )
