"""Which cycles of rollouts have their numbers recomputed: all of the first, then some."""

from __future__ import annotations

ALL_OF_FIRST = 8
"""Cycles at the beginning, each of which is recomputed."""
ONE_OF = 41
"""Later, one cycle of this many. The number is a prime, so that it seldom divides a data epoch."""
WHOLE_ONE_OF = 2 * ONE_OF
"""The same for what reads all gradients of a model. Such a pass takes a hundredth of an update, however large the model is."""
PROBED_OF_FIRST = 16
"""Cycles at the beginning whose updates are all probed. Later those of two neighbours are: of one that is compared, and of the one
before it, whose last update leaves the weights that the compared one begins with."""
CARRIED_ONE_OF = 5
"""Later than those, what a rollout holds is followed to its losses in one cycle of this many, and in those that are probed."""


def is_compared(cycle: int) -> bool:
    """Whether the numbers of this cycle of rollouts, counted from 0, are recomputed from the documented formulas."""
    return cycle < ALL_OF_FIRST or cycle % ONE_OF == 0


def is_compared_whole(cycle: int) -> bool:
    """Whether numbers of the whole model are recomputed in this cycle of rollouts."""
    return cycle < ALL_OF_FIRST or cycle % WHOLE_ONE_OF == 0


def is_probed(cycle: int) -> bool:
    """Whether weights are read around the updates of this cycle of rollouts."""
    return cycle < PROBED_OF_FIRST or is_compared(cycle) or is_compared(cycle + 1)


def is_carried(cycle: int) -> bool:
    """Whether checksums follow what a rollout of this cycle holds to its losses."""
    return is_probed(cycle) or cycle % CARRIED_ONE_OF == 0
