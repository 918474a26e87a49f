"""Matches expected with observed events, one at a time, in constant memory.

At the first difference the matcher says what was expected and what came. It then waits for the next rollout and continues from the
state observed there, so that one difference is reported once and later events are still judged.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec

from rlstep_hooks.judge.timeline import (
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
    rollout_events,
)
from rlstep_hooks.judge.timeline.phases import places_epoch_ends
from rlstep_hooks.planning.finding import Where
from rlstep_hooks.record.events import EpochEnd, MicroBatch, Refresh, Rollout, RunEnded, Update, WeightSync

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from rlstep_hooks.planning.schedule import Schedule

OrderedEvent = Rollout | Refresh | MicroBatch | Update | WeightSync | EpochEnd | RunEnded

Aspect = Literal["kind", "samples", "lag", "microbatches", "reference", "version", "early", "left_out"]
"""What differs: the event itself ("kind"), one of its numbers, only that it came before the expected one ("early"), or only that the
expected one, a sync, did not come before it ("left_out")."""


class Difference(msgspec.Struct, frozen=True):
    """One point at which the run differs from its plan."""

    expected: ExpectedEvent
    observed: OrderedEvent
    aspect: Aspect
    where: Where


Differences: TypeAlias = "Sequence[Difference]"
AS_PLANNED: Differences = ()


class ExpectedEvents(Protocol):
    """Generates the expected events of a plan from a position on."""

    def __call__(self, schedule: Schedule, start: Any, /) -> Generator[ExpectedEvent, Outcome, None]:
        """All expected events, in order."""


class Conformance:
    """Matches one process's events against its expected timeline.

    Args:
        schedule: The plan.
        start: The position at which the run begins.
        timeline: Generates the expected events from a position of the type of `start`.
    """

    def __init__(self, schedule: Schedule, start: Position, timeline: ExpectedEvents = expected_events) -> None:
        self.schedule = schedule
        self._timeline = timeline
        self._cursor = cursor_at(schedule, start)
        self._resumed = start.updates > 0
        self._lost = False
        self._held: Difference | None = None
        # Events that came as planned: those of frequent kinds, and all others. Events that did not.
        self._rollouts_matched = self._refreshes_matched = self._microbatches_matched = self._updates_matched = 0
        self._others: Counter[type[OrderedEvent]] = Counter()
        self._differing = 0
        self._restart(start)

    def _restart(self, position: Position) -> None:
        expected = self._timeline(self.schedule, position)
        self._next: ExpectedEvent | None = next(expected)
        self._send = expected.send
        self._lost = False

    def _lose(self) -> None:
        """Expect nothing until the next rollout."""
        self._lost = True
        self._next = None

    def _advance(self, outcome: Outcome = None) -> None:
        try:
            self._next = self._send(outcome)
        except StopIteration:
            self._next = None

    @property
    def matched(self) -> Counter[type[OrderedEvent]]:
        """Events of each kind that came as planned."""
        often: dict[type[OrderedEvent], int] = {
            Rollout: self._rollouts_matched,
            Refresh: self._refreshes_matched,
            MicroBatch: self._microbatches_matched,
            Update: self._updates_matched,
        }
        return self._others + Counter(often)

    @property
    def checks(self) -> int:
        """Comparisons made."""
        often = self._rollouts_matched + self._refreshes_matched + self._microbatches_matched + self._updates_matched
        return often + self._others.total() + self._differing

    @property
    def rollouts(self) -> int:
        """Rollouts made; in a resumed run, including those before the resume."""
        return self._cursor.rollouts

    def where(self, event: OrderedEvent | None = None) -> Where:
        """The place of the current event in the run."""
        return Where(
            rollout=self._cursor.rollouts if isinstance(event, Rollout) else max(self._cursor.rollouts - 1, 0),
            update=self._cursor.updates,
            microbatch=self._cursor.microbatches,
            epoch=self._cursor.epoch if self.schedule.has_data_epochs else None,
            resumed=self._resumed,
        )

    def position_before(self, rollout: Rollout) -> Position | None:
        """The position in the plan just before this rollout, which was the latest event."""
        return self._cursor.at_rollout(rollout, passed=True)

    def observe(self, event: OrderedEvent) -> Differences:
        """Match one event of any kind.

        Returns:
            The differences; none if the event is as planned or cannot be judged.
        """
        return _OBSERVE[type(event)](self, event)

    # One function for each frequent kind of event. Nearly every event is as planned and takes only these few lines. An expected event
    # always follows, because the end of training is not matched here.

    def rollout(self, event: Rollout) -> Differences:
        """Match one rollout of training."""
        expected = self._next
        if type(expected) is not ExpectedRollout or _of_rollout(expected, event):
            differences = self._differences(event)
        else:
            self._rollouts_matched += 1
            self._next = self._send(event.samples)
            differences = AS_PLANNED
        self._cursor.rollout(event)
        return differences

    def refresh(self, event: Refresh) -> Differences:
        """Match one computation of old log-probs."""
        expected = self._next
        if type(expected) is not ExpectedRefresh or event.policy_version not in (None, expected.version):
            return self._differences(event)
        self._refreshes_matched += 1
        self._next = self._send(None)
        return AS_PLANNED

    def microbatch(self, event: MicroBatch) -> Differences:
        """Match one micro-batch."""
        expected = self._next
        if type(expected) is not ExpectedMicroBatch or event.role != expected.role or _of_microbatch(expected, event):
            differences = self._differences(event)
        else:
            self._microbatches_matched += 1
            self._next = self._send(event.samples)
            differences = AS_PLANNED
        self._cursor.microbatch(event)
        return differences

    def update(self, event: Update) -> Differences:
        """Match one update."""
        expected = self._next
        if type(expected) is not ExpectedUpdate or event.role != expected.role or _of_update(expected, event):
            differences = self._differences(event)
        else:
            self._updates_matched += 1
            self._next = self._send(event.applied)
            differences = AS_PLANNED
        self._cursor.update(event)
        return differences

    def seldom(self, event: WeightSync | EpochEnd | RunEnded) -> Differences:
        """Match an event of an infrequent kind."""
        differences = self._differences(event)
        if isinstance(event, EpochEnd):
            self._cursor.epoch_end(event)
        return differences

    def _differences(self, event: OrderedEvent) -> Differences:
        return [*self._settle(event), *self._match(event)]

    def _settle(self, event: OrderedEvent) -> list[Difference]:
        """Report a difference that was held back until the next event was known.

        If a pass ended because the run was over, the difference is the end of training. If a sync came where updates were expected, it
        came early if they follow; otherwise they are missing.
        """
        held, self._held = self._held, None
        if held is None:
            return []
        ended_by_wish = isinstance(event, RunEnded) and (event.status == "raised" or event.stopped)
        if isinstance(held.observed, WeightSync):
            if isinstance(event, WeightSync):  # another sync does not tell which
                self._held = held
                return []
            early = isinstance(event, MicroBatch | Update | Refresh) or ended_by_wish
            return [msgspec.structs.replace(held, aspect="early")] if early else [held]
        if isinstance(event, RunEnded):
            return [] if ended_by_wish else [msgspec.structs.replace(held, observed=event)]
        return [held]

    def _match(self, event: OrderedEvent) -> list[Difference]:
        if isinstance(event, RunEnded) and (event.status != "completed" or event.stopped):
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
        if self.schedule.syncs == "first_and_before_updates" and _lacks_sync(self._next, event):
            differences.append(self._difference(event, "left_out"))
            self._advance()
        if isinstance(self._next, ExpectedRefresh) and not isinstance(event, Refresh):
            missing = self._difference(event, "kind")
            self._advance()
        expected = self._next
        aspects = _aspects(expected, event)
        # If the event is none of the following ones either, the whole rollout is missing, not only its old log-probs.
        if missing is not None and "kind" not in aspects:
            differences.append(missing)
        if expected is None or "kind" in aspects:
            difference = self._difference(event, "kind")
            over = isinstance(event, EpochEnd) and event.run_over and not isinstance(expected, ExpectedUpdate)
            early = isinstance(event, WeightSync) and isinstance(expected, ExpectedMicroBatch | ExpectedUpdate)
            if over or early:
                self._held = difference
            else:
                differences.append(difference)
            if not isinstance(event, Refresh):
                self._lose()
            if isinstance(event, Rollout):
                self._restart(self._cursor.at_rollout(event))
                self._advance(_outcome(event))
            return differences
        differences += [self._difference(event, aspect) for aspect in aspects]
        if not differences:
            self._others[type(event)] += 1
        self._advance(_outcome(event))
        return differences

    def _may_end(self) -> bool:
        """Whether training may end here: between two rollouts of a run whose length is not planned."""
        unknown = self.schedule.loop == "phases" and self.schedule.rollouts is None
        return unknown and isinstance(self._next, ExpectedRollout | ExpectedEpochEnd)

    def _difference(self, event: OrderedEvent, aspect: Aspect) -> Difference:
        self._differing += 1
        return Difference(self._next or ExpectedEnd(self._cursor.updates), event, aspect, self.where(event))


class ConformanceOfRoles:
    """Matches a run whose plan leaves the order of policy and critic open: each role has its own timeline.

    Args:
        schedule: The plan, with the critic's plan.
        start: The position at which the run begins.
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
    def matched(self) -> Counter[type[OrderedEvent]]:
        """Events of each kind that came as planned."""
        of_critic = {kind: self._critic.matched[kind] for kind in (MicroBatch, Update)}
        return self._policy.matched + Counter(of_critic)

    @property
    def rollouts(self) -> int:
        """Rollouts made; in a resumed run, including those before the resume."""
        return self._policy.rollouts

    def where(self, event: OrderedEvent | None = None) -> Where:
        """The place of the current event in the run, in updates of the policy."""
        return self._policy.where(event)

    def position_before(self, rollout: Rollout) -> Position | None:
        """See `Conformance.position_before`."""
        return self._policy.position_before(rollout)

    def observe(self, event: OrderedEvent) -> Differences:
        """Match one event; see `Conformance.observe`."""
        where = self.where(event)
        if isinstance(event, MicroBatch | Update) and event.role == "critic":
            return [msgspec.structs.replace(found, where=where) for found in self._critic.observe(event)]
        differences = self._policy.observe(event)
        if isinstance(event, Rollout | RunEnded):
            # The policy's matcher reported what is wrong with the event itself; here only updates of the critic can be missing.
            missing = [
                found for found in self._critic.observe(event) if getattr(found.expected, "role", "") == "critic"
            ]
            differences = [*differences, *(msgspec.structs.replace(found, where=where) for found in missing)]
        return differences

    rollout = refresh = microbatch = update = seldom = observe


class NothingPlanned:
    """Takes the place of a matcher if nothing is planned or the order of events cannot be observed: reports no differences."""

    checks = 0
    rollouts = 0

    @property
    def matched(self) -> Counter[type[OrderedEvent]]:
        """Nothing: no event is compared."""
        return Counter()

    def position_before(self, rollout: Rollout) -> Position | None:
        """Answer None: there is no plan that a run could have a position in."""
        return None

    def observe(self, event: OrderedEvent) -> Differences:
        """Ignore one event."""
        return AS_PLANNED

    rollout = refresh = microbatch = update = seldom = observe


NOTHING_PLANNED = NothingPlanned()
Matcher = Conformance | ConformanceOfRoles | NothingPlanned


def matcher(schedule: Schedule, start: Position, *, rollouts_only: bool = False) -> Conformance | ConformanceOfRoles:
    """The matcher for the events of a run with this plan.

    Args:
        schedule: The plan.
        start: The position at which the run begins.
        rollouts_only: Whether rollouts are all that was seen of the run, those of all processes together.
    """
    if rollouts_only:
        return Conformance(schedule, start, rollout_events)
    if schedule.critic is not None and schedule.critic_order == "free" and isinstance(start, PhasePosition):
        return ConformanceOfRoles(schedule, start)
    return Conformance(schedule, start)


def _lacks_sync(expected: ExpectedEvent | None, event: OrderedEvent) -> bool:
    """Whether the updates on a rollout begin without the sync that was due before them."""
    return isinstance(expected, ExpectedSync) and isinstance(event, Refresh | MicroBatch | Update)


def _ends_updates(expected: ExpectedEvent | None, event: OrderedEvent) -> bool:
    """Whether the updates on a rollout, which may end early, ended before this event."""
    if not isinstance(expected, ExpectedMicroBatch) or not expected.may_end:
        return False
    if isinstance(event, MicroBatch | Update):
        return event.role != expected.role
    return not isinstance(event, Refresh)


# Each function gives the aspects in which an event differs from the expected event of its kind and role.


def _of_rollout(expected: ExpectedRollout, event: Rollout) -> tuple[Aspect, ...]:
    due = expected.samples if event.due is None else event.due
    samples: tuple[Aspect, ...] = ("samples",) if due not in (None, event.samples) else ()
    return samples if event.reference in (None, expected.reference) else (*samples, "reference")


def _of_version(expected: ExpectedRefresh | ExpectedSync, event: Refresh | WeightSync) -> tuple[Aspect, ...]:
    return () if event.policy_version in (None, expected.version) else ("version",)


def _of_microbatch(expected: ExpectedMicroBatch, event: MicroBatch) -> tuple[Aspect, ...]:
    lag = observed_lag(event)
    differs: tuple[Aspect, ...] = () if lag == expected.lag or None in (lag, expected.lag) else ("lag",)
    size = expected.samples
    if event.samples == size or (size is None and (expected.at_most is None or event.samples <= expected.at_most)):
        return differs
    return ("samples", *differs)


def _of_update(expected: ExpectedUpdate, event: Update) -> tuple[Aspect, ...]:
    return () if expected.microbatches in (None, event.microbatches) else ("microbatches",)


def _aspects(expected: ExpectedEvent | None, event: OrderedEvent) -> tuple[Aspect, ...]:
    """The aspects in which an event differs from the expected one; only "kind" if it is of another kind or role."""
    match expected, event:
        case ExpectedRollout(), Rollout():
            return _of_rollout(expected, event)
        case ExpectedRefresh(), Refresh():
            return _of_version(expected, event)
        case ExpectedSync(), WeightSync():
            return _of_version(expected, event)
        case ExpectedMicroBatch(), MicroBatch() if event.role == expected.role:
            return _of_microbatch(expected, event)
        case ExpectedUpdate(), Update() if event.role == expected.role:
            return _of_update(expected, event)
        case (ExpectedEpochEnd(), EpochEnd()) | (ExpectedEnd(), RunEnded()):
            return ()
    return ("kind",)


def _outcome(event: OrderedEvent) -> Outcome:
    """What a timeline must know of an event that met its expectation."""
    match event:
        case Rollout() | MicroBatch():
            return event.samples
        case Update():
            return event.applied
    return None


_OBSERVE: dict[type, Callable[[Conformance, Any], Differences]] = {
    Rollout: Conformance.rollout,
    Refresh: Conformance.refresh,
    MicroBatch: Conformance.microbatch,
    Update: Conformance.update,
    WeightSync: Conformance.seldom,
    EpochEnd: Conformance.seldom,
    RunEnded: Conformance.seldom,
}


def observed_lag(event: MicroBatch) -> int | None:
    """Updates between the refresh (or the rollout, if nothing is refreshed) and this forward; None if not observed."""
    if event.role == "critic":
        return None
    origin = event.old_version
    if origin is None and event.old_source != "recompute":
        origin = event.sampled_version
    return None if origin is None else event.policy_version - origin
