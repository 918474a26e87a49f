"""PPO loops that count micro-batches with `accelerator.accumulate` (TRL's PPO and RLOO, its old `step()`, LLaMA-Factory).

accelerate makes an update after every `window` micro-batches, and after every single micro-batch while the loader of prompts is at
its last batch (`Flush`). A PPO loop keeps its loader on one batch for a whole rollout, so in the last rollout of a pass over the rows
each micro-batch is an update.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlstep_hooks.planning.counting import countable

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Flush

MOST_PASSES = 1_000_000
"""Largest number of passes over the rows for which a run's updates are counted pass by pass."""


def windows_of(microbatches: tuple[int, ...], window: int) -> tuple[int, ...]:
    """Samples of each update of one pass, from those of its micro-batches; empty if a window spans passes."""
    if len(microbatches) % window:
        return ()
    starts = range(0, len(microbatches), window)
    return tuple(sum(microbatches[start : start + window]) for start in starts)


def carried_lags(microbatches: int, window: int) -> tuple[int, ...]:
    """Lags in all rollouts but the last of a pass.

    Micro-batches left at the end of a rollout shift the windows of the next rollout, by at most the window minus the greatest
    common divisor of window and rollout.

    Args:
        microbatches: The micro-batches of one rollout, on one process.
        window: Micro-batches in one update.
    """
    common = math.gcd(microbatches, window)
    return tuple(range(countable((window - common + microbatches - 1) // window + 1)))


def flushed_lags(microbatches: int, window: int) -> tuple[int, ...]:
    """Lags in the last rollout of a pass, where every micro-batch is an update."""
    return tuple(range(countable(max(microbatches, len(carried_lags(microbatches, window))))))


def updates_of_run(microbatches: int, window: int, flush: Flush, rollouts: int) -> int:
    """Updates of a whole run.

    Args:
        microbatches: The micro-batches of one rollout, on one process.
        window: Micro-batches in one update.
        flush: The rollouts in which every micro-batch is an update.
        rollouts: Number of rollouts of the run.

    Raises:
        OverflowError: The run has more than `MOST_PASSES` passes.
    """
    per_epoch = flush.rollouts_per_epoch
    if rollouts > per_epoch * MOST_PASSES:
        raise OverflowError(f"more than {MOST_PASSES} passes over the rows")
    updates = waiting = 0
    for start in range(0, rollouts, per_epoch):
        made = min(per_epoch, rollouts - start)
        plain = min(flush.rollouts_before(start), made)
        filled, waiting = divmod(waiting + plain * microbatches, window)
        updates += filled
        if plain < made:
            updates += (made - plain) * microbatches
            waiting = 0
    return updates
