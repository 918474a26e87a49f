"""Expected against observed, one event at a time, in constant memory.

At the first event that differs the matcher says what was expected and what came. It then waits for the next rollout and goes
on from there with the state that was observed, so that one difference is reported once and what follows is still judged.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from rlstep_hooks.events import EpochEnd, MicroBatch, Refresh, Rollout, RunEnded, Update, WeightSync
from rlstep_hooks.report import Where
from rlstep_hooks.timeline import (
    ExpectedEnd,
    ExpectedEpochEnd,
    ExpectedEvent,
    ExpectedMicroBatch,
    ExpectedRefresh,
    ExpectedRollout,
    ExpectedSync,
    ExpectedUpdate,
    Outcome,
    PhasePosition,
    Position,
    critic_events,
    cursor_at,
    expected_events,
)
from rlstep_hooks.timeline.phases import places_epoch_ends

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from rlstep_hooks.schedule import Schedule

OrderedEvent = Rollout | Refresh | MicroBatch | Update | WeightSync | EpochEnd | RunEnded

Aspect = Literal["kind", "samples", "lag", "microbatches", "reference", "version"]
"""What differs: which event it is ("kind"), or one of its numbers."""


class Difference(msgspec.Struct, frozen=True):
    """One point at which the run and its plan part."""

    expected: ExpectedEvent
    observed: OrderedEvent
    aspect: Aspect
    where: Where


class Timeline(Protocol):
    """What gives the expected events of a plan, from a position on."""

    def __call__(self, schedule: Schedule, start: Any, /) -> Generator[ExpectedEvent, Outcome, None]:
        """Every expected event, in order."""


class Conformance:
    """Matches one process's events against its expected timeline.

    Args:
        schedule: The plan.
        start: Where the run begins.
        timeline: Gives the expected events, from a position of the kind of `start`.
    """

    def __init__(self, schedule: Schedule, start: Position, timeline: Timeline = expected_events) -> None:
        self.schedule = schedule
        self.checks = 0
        self._timeline = timeline
        self._cursor = cursor_at(schedule, start)
        self._lost = False
        self._held: Difference | None = None
        self._restart(start)

    def _restart(self, position: Position) -> None:
        self._expected = self._timeline(self.schedule, position)
        self._next: ExpectedEvent | None = next(self._expected)
        self._lost = False

    def _lose(self) -> None:
        """Expect nothing until the next rollout."""
        self._lost = True
        self._next = None

    def _advance(self, outcome: Outcome = None) -> None:
        try:
            self._next = self._expected.send(outcome)
        except StopIteration:
            self._next = None

    @property
    def rollouts(self) -> int:
        """Rollouts made; of a run in phases that was resumed, with those before."""
        return self._cursor.rollouts

    def where(self, event: OrderedEvent | None = None) -> Where:
        """The place in the run of the event being looked at."""
        return Where(
            rollout=self._cursor.rollouts if isinstance(event, Rollout) else max(self._cursor.rollouts - 1, 0),
            update=self._cursor.updates,
            microbatch=self._cursor.microbatches,
            epoch=self._cursor.epoch if self.schedule.has_data_epochs else None,
        )

    def observe(self, event: OrderedEvent) -> list[Difference]:
        """Match one event.

        Returns:
            The differences found: none where the event is as planned or nothing can be said of it.
        """
        differing = _DIFFERING.get(type(event))
        if differing is None or differing(self._next, event):
            differences = self._settle(event) + self._match(event)
        else:
            # As planned, like nearly every event: then this is all there is to do. Something always follows, because the end of
            # training is not matched here.
            self.checks += 1
            self._next = self._expected.send(_OUTCOME[type(event)](event))
            differences = []
        self._cursor.count(event)
        return differences

    def _settle(self, event: OrderedEvent) -> list[Difference]:
        """Report a pass that ended because the run was over, held back until now: the end of training is what differs."""
        held, self._held = self._held, None
        if held is None:
            return []
        if isinstance(event, RunEnded):
            ended_by_wish = event.status == "raised" or event.stopped
            return [] if ended_by_wish else [msgspec.structs.replace(held, observed=event)]
        return [held]

    def _match(self, event: OrderedEvent) -> list[Difference]:
        if isinstance(event, RunEnded) and (event.status == "raised" or event.stopped):
            return []
        if isinstance(event, EpochEnd):
            if self.schedule.loop == "phases" and not places_epoch_ends(self.schedule):
                return []
            position = self._cursor.after_unplanned_epoch_end(event)
            if position is not None:
                self._restart(position)
                return []
        if self._lost:
            if not isinstance(event, Rollout):
                return []
            self._restart(self._cursor.at_rollout(event))
        if _ends_updates(self._next, event):
            self._advance("ended")
        if self._next is None or (isinstance(event, RunEnded) and self._may_end()):
            return []
        differences: list[Difference] = []
        missing: Difference | None = None
        if isinstance(self._next, ExpectedRefresh) and not isinstance(event, Refresh):
            missing = self._difference(event, "kind")
            self._advance()
        expected = self._next
        aspects = _aspects(expected, event)
        # Where the event is none of those that follow either, the whole rollout is missing and not its old log-probs alone.
        if missing is not None and "kind" not in aspects:
            differences.append(missing)
        if expected is None or "kind" in aspects:
            difference = self._difference(event, "kind")
            if isinstance(event, EpochEnd) and event.run_over and not isinstance(expected, ExpectedUpdate):
                self._held = difference
            else:
                differences.append(difference)
            if not isinstance(event, Refresh):
                self._lose()
            if isinstance(event, Rollout):
                self._restart(self._cursor.at_rollout(event))
                self._advance(_OUTCOME[type(event)](event))
            return differences
        self.checks += 1
        differences += [self._difference(event, aspect) for aspect in aspects]
        self._advance(_OUTCOME[type(event)](event))
        return differences

    def _may_end(self) -> bool:
        """Whether training may end here: between two rollouts of a run whose length no plan knows."""
        unknown = self.schedule.loop == "phases" and self.schedule.rollouts is None
        return unknown and isinstance(self._next, ExpectedRollout | ExpectedEpochEnd)

    def _difference(self, event: OrderedEvent, aspect: Aspect) -> Difference:
        self.checks += 1
        return Difference(self._next or ExpectedEnd(self._cursor.updates), event, aspect, self.where(event))


class ConformanceOfRoles:
    """Matches a run whose plan leaves the order of policy and critic free: each role with a timeline of its own.

    Args:
        schedule: The plan, with that of its critic.
        start: Where the run begins.
    """

    def __init__(self, schedule: Schedule, start: PhasePosition) -> None:
        self.schedule = schedule
        self._policy = Conformance(schedule, start)
        self._critic = Conformance(schedule, start, critic_events)

    @property
    def checks(self) -> int:
        """Comparisons made."""
        return self._policy.checks + self._critic.checks

    @property
    def rollouts(self) -> int:
        """Rollouts made; of a run that was resumed, with those before."""
        return self._policy.rollouts

    def where(self, event: OrderedEvent | None = None) -> Where:
        """The place in the run of the event being looked at, in updates of the policy."""
        return self._policy.where(event)

    def observe(self, event: OrderedEvent) -> list[Difference]:
        """Match one event; see `Conformance.observe`."""
        where = self.where(event)
        if isinstance(event, MicroBatch | Update) and event.role == "critic":
            return [msgspec.structs.replace(found, where=where) for found in self._critic.observe(event)]
        differences = self._policy.observe(event)
        if isinstance(event, Rollout | RunEnded):
            # What is wrong with the event itself was said of the policy; here only updates of the critic can be missing.
            missing = [
                found for found in self._critic.observe(event) if getattr(found.expected, "role", "") == "critic"
            ]
            differences += [msgspec.structs.replace(found, where=where) for found in missing]
        return differences


def matcher(schedule: Schedule, start: Position) -> Conformance | ConformanceOfRoles:
    """What matches the events of a run with its plan."""
    if schedule.critic is not None and schedule.critic_order == "free" and isinstance(start, PhasePosition):
        return ConformanceOfRoles(schedule, start)
    return Conformance(schedule, start)


def _ends_updates(expected: ExpectedEvent | None, event: OrderedEvent) -> bool:
    """Whether the updates on a rollout, which may end early, did end before this event."""
    if not isinstance(expected, ExpectedMicroBatch) or not expected.may_end:
        return False
    if isinstance(event, MicroBatch | Update):
        return event.role != expected.role
    return not isinstance(event, Refresh)


# What of an event differs from what was expected, one function for each kind of event; nothing where it is as planned.


def _of_rollout(expected: ExpectedEvent | None, event: Rollout) -> tuple[Aspect, ...]:
    if type(expected) is not ExpectedRollout:
        return _OTHER
    samples: tuple[Aspect, ...] = ("samples",) if expected.samples not in (None, event.samples) else ()
    return samples if event.reference in (None, expected.reference) else (*samples, "reference")


def _of_version(expected: ExpectedEvent | None, event: Refresh | WeightSync) -> tuple[Aspect, ...]:
    if type(expected) is not (ExpectedRefresh if type(event) is Refresh else ExpectedSync):
        return _OTHER
    return () if event.policy_version in (None, expected.version) else ("version",)


def _of_microbatch(expected: ExpectedEvent | None, event: MicroBatch) -> tuple[Aspect, ...]:
    if type(expected) is not ExpectedMicroBatch or event.role != expected.role:
        return _OTHER
    lag = expected.lag
    seen = None if lag is None else observed_lag(event)
    differs: tuple[Aspect, ...] = () if seen is None or seen == lag else ("lag",)
    size = expected.samples
    if event.samples == size or (size is None and (expected.at_most is None or event.samples <= expected.at_most)):
        return differs
    return ("samples", *differs)


def _of_update(expected: ExpectedEvent | None, event: Update) -> tuple[Aspect, ...]:
    if type(expected) is not ExpectedUpdate or event.role != expected.role:
        return _OTHER
    return () if expected.microbatches in (None, event.microbatches) else ("microbatches",)


_OTHER: tuple[Aspect, ...] = ("kind",)
_DIFFERING: dict[type, Callable[[ExpectedEvent | None, Any], tuple[Aspect, ...]]] = {
    Rollout: _of_rollout,
    Refresh: _of_version,
    WeightSync: _of_version,
    MicroBatch: _of_microbatch,
    Update: _of_update,
}
"""Ends of passes and of training are not here: whether they are looked at at all depends on more than what is expected."""


def _aspects(expected: ExpectedEvent | None, event: OrderedEvent) -> tuple[Aspect, ...]:
    if isinstance(event, EpochEnd | RunEnded):
        return () if type(expected) is (ExpectedEpochEnd if isinstance(event, EpochEnd) else ExpectedEnd) else _OTHER
    return _DIFFERING[type(event)](expected, event)


def _nothing(event: OrderedEvent) -> None:
    return None


_OUTCOME: dict[type, Callable[[Any], Outcome]] = {
    Rollout: attrgetter("samples"),
    Refresh: _nothing,
    WeightSync: _nothing,
    MicroBatch: attrgetter("samples"),
    Update: attrgetter("applied"),
    EpochEnd: _nothing,
    RunEnded: _nothing,
}
"""What a timeline needs to know of the event that met its expectation."""


def observed_lag(event: MicroBatch) -> int | None:
    """Updates between the refresh (or, where nothing is refreshed, the rollout) and this forward; None if unseen."""
    if event.role == "critic":
        return None
    origin = event.old_version
    if origin is None and event.old_source != "recompute":
        origin = event.sampled_version
    return None if origin is None else event.policy_version - origin
