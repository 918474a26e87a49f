"""Which cycles of rollouts have their numbers recomputed: all of the first, then some (`rlstep_hooks.record.cadence`).

A run of one process recomputes more where there is time for it, and a user may ask for all (`rlstep_hooks.observe.spending`).
"""

from __future__ import annotations

from rlstep_hooks.observe.spending import SPENDING
from rlstep_hooks.record import cadence


def is_compared(cycle: int) -> bool:
    """Whether the numbers of this cycle of rollouts, counted from 0, are recomputed from the documented formulas."""
    if cycle > SPENDING.latest:
        SPENDING.cycle_began(cycle)
    return _is_compared(cycle)


def _is_compared(cycle: int) -> bool:
    return cycle < cadence.ALL_OF_FIRST or cycle % cadence.ONE_OF == 0 or cycle % SPENDING.one_of == 0


def is_compared_whole(cycle: int) -> bool:
    """Whether numbers of the whole model are recomputed in this cycle of rollouts."""
    return cycle < cadence.ALL_OF_FIRST or cycle % cadence.WHOLE_ONE_OF == 0 or cycle % SPENDING.whole_one_of == 0


def is_sloped(cycle: int) -> bool:
    """Whether the slope of the model's layers is measured in this cycle of rollouts."""
    later = cycle > 0 and (cycle % cadence.SLOPE_ONE_OF == 0 or cycle % SPENDING.slope_one_of == 0)
    return cycle in cadence.SLOPES_AT or later


def part_read(update: int, per_cycle: int) -> int | None:
    """The part of each tensor of a large model that is read around an update (`cadence.READ_WHOLE`); None where all is.

    Args:
        update: The update, counted from 0.
        per_cycle: Updates of a cycle of rollouts.
    """
    cycle = update // per_cycle
    in_parts = cycle < cadence.ALL_OF_FIRST or (SPENDING.in_parts and cycle % cadence.WHOLE_ONE_OF)
    return update % cadence.PARTS if cycle and in_parts else None


def is_probed(cycle: int) -> bool:
    """Whether weights are read around the updates of this cycle of rollouts."""
    return cycle < cadence.PROBED_OF_FIRST or _is_compared(cycle) or _is_compared(cycle + 1)


def is_carried(cycle: int) -> bool:
    """Whether checksums follow what a rollout of this cycle holds to its losses."""
    return is_probed(cycle) or cycle % cadence.CARRIED_ONE_OF == 0
