"""What a plan adds up to from where a run began: sums over its timeline."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.judge.timeline import critic_events, expected_events, position_of
from rlstep_hooks.judge.timeline.expected import (
    ExpectedEnd,
    ExpectedMicroBatch,
    ExpectedRefresh,
    ExpectedRollout,
    ExpectedSync,
    ExpectedUpdate,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlstep_hooks.judge.timeline.expected import ExpectedEvent
    from rlstep_hooks.planning.schedule import Schedule

LONGEST = 200_000
"""Events of a timeline that is walked to its end; the totals of a longer one are not known here."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Events of a whole run, as one process counts them. None where the data decides."""

    rollouts: int
    samples: int | None
    refreshes: int
    microbatches: int | None
    """Of the policy."""
    updates: int
    critic_updates: int
    syncs: int


def planned_totals(schedule: Schedule, start: dict[str, Any]) -> Totals | None:
    """The events that a plan still has; None where it has no known end, or a very distant one.

    Args:
        schedule: The plan.
        start: Where the run began, in its plain form; empty at the beginning.
    """
    if (schedule.rollouts if schedule.loop == "phases" else schedule.updates) is None:
        return None
    position = position_of(schedule, start)
    timelines: list[Iterable[ExpectedEvent]] = [expected_events(schedule, position)]
    if schedule.critic is not None and schedule.critic_order == "free":
        of_critic = critic_events(schedule, position)  # type: ignore[arg-type]  # such a plan is one in phases
        timelines.append(event for event in of_critic if isinstance(event, ExpectedUpdate))
    rollouts = refreshes = microbatches = updates = critic_updates = syncs = samples = 0
    uncertain = unsized = False
    ended = False
    for number, event in enumerate(chain(*timelines)):
        if number > LONGEST:
            return None
        if isinstance(event, ExpectedMicroBatch):
            uncertain = uncertain or event.samples is None
            microbatches += event.role == "policy"
        elif isinstance(event, ExpectedUpdate):
            updates += event.role == "policy"
            critic_updates += event.role == "critic"
        elif isinstance(event, ExpectedRollout):
            rollouts += 1
            samples += event.samples or 0
            unsized = unsized or event.samples is None
        elif isinstance(event, ExpectedRefresh):
            refreshes += 1
        elif isinstance(event, ExpectedSync):
            syncs += 1
        elif isinstance(event, ExpectedEnd):
            ended = True
    if not ended:
        return None
    return Totals(
        rollouts=rollouts,
        samples=None if unsized else samples,
        refreshes=refreshes,
        microbatches=None if uncertain or unsized else microbatches,
        updates=updates,
        critic_updates=critic_updates,
        syncs=syncs,
    )
