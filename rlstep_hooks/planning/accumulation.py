"""PPO loops that count micro-batches with `accelerator.accumulate` (TRL's PPO and RLOO, its old `step()`, LLaMA-Factory).

accelerate makes an update after every `window` micro-batches, and after every single micro-batch while the loader of prompts is at
its last batch (`Flush`). A PPO loop keeps its loader on one batch for a whole rollout, so in the last rollout of a pass over the rows
each micro-batch is an update.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.planning.counting import countable

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Flush

MOST_PASSES = 1_000_000
"""Largest number of passes over the rows for which a run's updates are counted pass by pass."""


class Accumulation(msgspec.Struct, frozen=True, kw_only=True):
    """One process's micro-batches of one rollout."""

    microbatches: tuple[int, ...]
    """Samples of each micro-batch in one pass over the rollout, on one process, in order."""
    passes: int
    """Passes over a rollout."""
    window: int
    """gradient_accumulation_steps: micro-batches in one update."""

    @property
    def per_rollout(self) -> int:
        """Micro-batches of one rollout."""
        return self.passes * len(self.microbatches)

    @property
    def updates_per_rollout(self) -> Fraction:
        """Updates per rollout, on average if windows span rollouts. The last rollout of a pass over the rows is not included."""
        return Fraction(self.per_rollout, self.window)

    @property
    def carries(self) -> bool:
        """Whether a window may begin in one rollout and end in the next."""
        return self.per_rollout % self.window != 0

    @property
    def lags(self) -> tuple[int, ...]:
        """Lags in all rollouts but the last of a pass.

        Micro-batches left at the end of a rollout shift the windows of the next rollout, by at most the window minus the greatest
        common divisor of window and rollout.
        """
        common = math.gcd(self.per_rollout, self.window)
        return tuple(range(countable((self.window - common + self.per_rollout - 1) // self.window + 1)))

    @property
    def flushed_lags(self) -> tuple[int, ...]:
        """Lags in the last rollout of a pass, where every micro-batch is an update."""
        return tuple(range(countable(max(self.per_rollout, len(self.lags)))))

    @property
    def minibatches(self) -> tuple[int, ...]:
        """Samples of each update of one pass, on one process; empty if a window spans passes."""
        if len(self.microbatches) % self.window:
            return ()
        starts = range(0, len(self.microbatches), self.window)
        return tuple(sum(self.microbatches[start : start + self.window]) for start in starts)

    @property
    def samples_per_microbatch(self) -> int | None:
        """Samples of a micro-batch on one process; None if they differ."""
        return self.microbatches[0] if len(set(self.microbatches)) == 1 else None


def updates_of_run(accumulation: Accumulation, flush: Flush, *, rollouts: int) -> int:
    """Updates of a whole run.

    Args:
        accumulation: Micro-batches and windows.
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
        filled, waiting = divmod(waiting + plain * accumulation.per_rollout, accumulation.window)
        updates += filled
        if plain < made:
            updates += (made - plain) * accumulation.per_rollout
            waiting = 0
    return updates
