"""Words that several of these rules use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.record.events import (
    EpochEnd,
    WeightSync,
)

if TYPE_CHECKING:
    from fractions import Fraction


LAST_ROWS = "look at what the loop does with the samples that come with the last rows, and for filtered batches"


def updates_text(count: Fraction) -> str:
    """A number of updates: "1 update", "3/2 updates"."""
    return f"{count} update" + ("" if count == 1 else "s")


def microbatches_text(count: int) -> str:
    """A number of micro-batches: "1 micro-batch"."""
    return f"{count} micro-batch" + ("" if count == 1 else "es")


def ends_rollout(event: object, loop: str) -> bool:
    """Whether the samples of a rollout are trained by now: in phases a data epoch ends between two of them."""
    return isinstance(event, WeightSync) or (isinstance(event, EpochEnd) and loop == "phases")
