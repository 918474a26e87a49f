"""Reading back what a run wrote for TensorBoard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

if TYPE_CHECKING:
    from pathlib import Path

Points = dict[str, list[tuple[int, float]]]
"""Tag -> steps and values, in the order in which they were written."""


def points(folder: Path) -> Points:
    """All scalars below a folder; one process must have written them."""
    (file,) = folder.rglob("events.out.tfevents.*")
    read = EventAccumulator(str(file), size_guidance={"scalars": 0})
    read.Reload()
    return {tag: [(event.step, event.value) for event in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def split(found: Points, prefix: str) -> tuple[Points, Points]:
    """The tags below a prefix, without it, and all others."""
    mine = {tag.removeprefix(prefix): values for tag, values in found.items() if tag.startswith(prefix)}
    return mine, {tag: values for tag, values in found.items() if not tag.startswith(prefix)}
