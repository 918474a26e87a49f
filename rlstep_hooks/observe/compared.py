"""Which cycles of rollouts have their numbers recomputed: all of the first, then some."""

from __future__ import annotations

ALL_OF_FIRST = 8
"""Cycles at the beginning, each of which is recomputed."""
ONE_OF = 7
"""Later, one cycle of this many. The number is odd, so that it seldom divides a data epoch."""


def is_compared(cycle: int) -> bool:
    """Whether the numbers of this cycle of rollouts, counted from 0, are recomputed from the documented formulas."""
    return cycle < ALL_OF_FIRST or cycle % ONE_OF == 0
