"""The expected timeline: an executable specification of a Schedule.

`expected_events` yields, in order, every event that one process should show; totals are sums over it. A timeline is told the outcome
of each expectation, because a skipped update leaves the policy version unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.judge.timeline.expected import (
    ExpectedEnd,
    ExpectedEpochEnd,
    ExpectedEvent,
    ExpectedMicroBatch,
    ExpectedRefresh,
    ExpectedRollout,
    ExpectedSync,
    ExpectedUpdate,
    Outcome,
)
from rlstep_hooks.judge.timeline.loader import LoaderCursor, LoaderPosition, loader_events
from rlstep_hooks.judge.timeline.phases import (
    PhaseCursor,
    PhasePosition,
    critic_events,
    phase_events,
    samples_of_rollout,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.events import RunStarted

__all__ = [
    "Cursor",
    "ExpectedEnd",
    "ExpectedEpochEnd",
    "ExpectedEvent",
    "ExpectedMicroBatch",
    "ExpectedRefresh",
    "ExpectedRollout",
    "ExpectedSync",
    "ExpectedUpdate",
    "LoaderPosition",
    "Outcome",
    "PhasePosition",
    "Position",
    "critic_events",
    "cursor_at",
    "expected_events",
    "position_of",
    "rollout_events",
    "rollouts_before",
    "start_of",
]

Position = LoaderPosition | PhasePosition
Cursor = LoaderCursor | PhaseCursor


def expected_events(schedule: Schedule, start: Position | None = None) -> Generator[ExpectedEvent, Outcome, None]:
    """Every event that one process should show, in order; see `loader_events` and `phase_events`.

    Args:
        schedule: The plan.
        start: Where to begin, a position of the schedule's kind of loop; None for the start of training.
    """
    if schedule.loop == "phases":
        assert start is None or isinstance(start, PhasePosition)
        return phase_events(schedule, start)
    assert start is None or isinstance(start, LoaderPosition)
    return loader_events(schedule, start)


def rollout_events(schedule: Schedule, start: Position) -> Generator[ExpectedEvent, Outcome, None]:
    """The rollouts alone, each with the samples of all processes: what an export shows of a run.

    Args:
        schedule: The plan.
        start: Where to begin.
    """
    rollout = rollouts_before(schedule, start)
    data_decide = schedule.rows_bound == "data_dependent" or schedule.remainder == "wrap"
    while schedule.rollouts is None or rollout < schedule.rollouts:
        yield ExpectedRollout(None if data_decide else samples_of_rollout(schedule, rollout), start.version, False)
        rollout += 1
    yield ExpectedEnd(start.updates)


def start_of(started: RunStarted) -> dict[str, Any]:
    """The position in the plan at which a run began, in plain form."""
    stated: dict[str, Any] = started.facts.get(
        "position", {"updates": started.start_updates, "version": started.start_updates}
    )
    return stated


def position_of(schedule: Schedule, stated: dict[str, Any]) -> Position:
    """A position from its plain form in a run's first event."""
    if schedule.loop == "phases":
        return msgspec.convert(stated, PhasePosition)
    return msgspec.convert(stated, LoaderPosition)


def rollouts_before(schedule: Schedule, start: Position) -> int:
    """Rollouts of the plan that were made before a run began; its numbering continues from them."""
    return start.rollouts if isinstance(start, PhasePosition) else start.rollouts(schedule)


def cursor_at(schedule: Schedule, start: Position) -> Cursor:
    """The cursor that follows a process's events from `start` on."""
    return PhaseCursor(schedule, start) if isinstance(start, PhasePosition) else LoaderCursor(schedule, start)
