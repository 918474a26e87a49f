"""Which cycles of rollouts have their numbers recomputed: all of the first, then some."""

from __future__ import annotations

ALL_OF_FIRST = 8
"""Cycles at the beginning, each of which is recomputed."""
ONE_OF = 7
"""Later, one cycle of so many. Odd, so that it seldom divides a data epoch."""
WHOLE_ONE_OF = 7 * ONE_OF
"""What reads all gradients of a model is compared in one later cycle of so many."""


def is_compared(cycle: int) -> bool:
    """Whether the numbers of this cycle of rollouts, counted from 0, are recomputed from the documented formulas."""
    return cycle < ALL_OF_FIRST or cycle % ONE_OF == 0


def is_compared_whole(cycle: int) -> bool:
    """The same for what takes the whole model: a pass over all gradients is a hundredth of an update, however large the model is."""
    return cycle < ALL_OF_FIRST or cycle % WHOLE_ONE_OF == 0
