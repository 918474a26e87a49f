"""Words that several of these rules use."""

from __future__ import annotations

from rlstep_hooks.record.events import (
    EpochEnd,
    WeightSync,
)

LAST_ROWS = "look at what the loop does with the samples that come with the last rows, and for filtered batches"


def ends_rollout(event: object, loop: str) -> bool:
    """Whether an event ends the training on a rollout: a sync, or in phases the end of a data epoch."""
    return isinstance(event, WeightSync) or (isinstance(event, EpochEnd) and loop == "phases")
