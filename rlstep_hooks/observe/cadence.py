"""Which cycles of rollouts and updates are computed anew, where doing so for each would cost too much."""

from __future__ import annotations

FIRST = 8
"""The first cycles, all of them."""

EVERY = 7
"""Later, each seventh. Odd, so that it seldom divides a data epoch."""


def is_recomputed(cycle: int) -> bool:
    """Whether the numbers of a cycle, counted from 0, are computed anew."""
    return cycle < FIRST or cycle % EVERY == 0
