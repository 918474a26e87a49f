"""Which cycles of rollouts have their numbers recomputed: all of the first, then some (`rlstep_hooks.record.cadence`)."""

from __future__ import annotations

from rlstep_hooks.record import cadence


def is_compared(cycle: int) -> bool:
    """Whether the numbers of this cycle of rollouts, counted from 0, are recomputed from the documented formulas."""
    return cycle < cadence.ALL_OF_FIRST or cycle % cadence.ONE_OF == 0


def is_compared_whole(cycle: int) -> bool:
    """Whether numbers of the whole model are recomputed in this cycle of rollouts."""
    return cycle < cadence.ALL_OF_FIRST or cycle % cadence.WHOLE_ONE_OF == 0


def part_read(update: int, per_cycle: int) -> int | None:
    """The part of each tensor of a large model that is read around an update (`cadence.READ_WHOLE`); None where all is.

    Args:
        update: The update, counted from 0.
        per_cycle: Updates of a cycle of rollouts.
    """
    return update % cadence.PARTS if 0 < update // per_cycle < cadence.ALL_OF_FIRST else None


def is_probed(cycle: int) -> bool:
    """Whether weights are read around the updates of this cycle of rollouts."""
    return cycle < cadence.PROBED_OF_FIRST or is_compared(cycle) or is_compared(cycle + 1)


def is_carried(cycle: int) -> bool:
    """Whether checksums follow what a rollout of this cycle holds to its losses."""
    return is_probed(cycle) or cycle % cadence.CARRIED_ONE_OF == 0
