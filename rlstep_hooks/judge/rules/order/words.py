"""Words that several of these rules use."""

from __future__ import annotations

from rlstep_hooks.record.events import (
    EpochEnd,
    WeightSync,
)

LAST_ROWS = "look at what the loop does with the samples that come with the last rows, and for filtered batches"


def ends_rollout(event: object, loop: str) -> bool:
    """Whether the samples of a rollout are trained by now: in phases a data epoch ends between two of them."""
    return isinstance(event, WeightSync) or (isinstance(event, EpochEnd) and loop == "phases")
