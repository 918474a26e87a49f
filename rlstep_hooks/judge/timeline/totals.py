"""Totals of a plan from the position at which a run began: sums over its timeline."""

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
"""Largest number of events for which a timeline is walked to its end; totals of a longer one are not computed."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Events of a whole run, as one process counts them. None if the data decide."""

    rollouts: int
    samples: int | None
    refreshes: int
    microbatches: int | None
    """Micro-batches of the policy."""
    updates: int
    critic_updates: int
    syncs: int


def planned_totals(schedule: Schedule, start: dict[str, Any]) -> Totals | None:
    """The events of a plan from a position on; None if its end is unknown or too far away.

    Args:
        schedule: The plan.
        start: The position at which the run began, in plain form; empty for the start of training.
    """
    if (schedule.rollouts if schedule.loop == "phases" else schedule.updates) is None:
        return None
    # Each pass over a part of a rollout has an event, or costs time without one.
    if (schedule.rollouts or 0) * schedule.parts_per_rollout * schedule.reuse_epochs > LONGEST:
        return None
    position = position_of(schedule, start)
    timelines: list[Iterable[ExpectedEvent]] = [expected_events(schedule, position)]
    if schedule.critic is not None and schedule.critic_order == "free":
        of_critic = critic_events(schedule, position)  # type: ignore[arg-type]  # only plans in phases have such a critic
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
