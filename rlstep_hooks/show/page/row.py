"""One rollout in detail, collected while its events come. Of a rollout with many updates only some stretches are kept."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from rlstep_hooks.judge.timeline import ExpectedRollout, ExpectedUpdate, expected_events
from rlstep_hooks.record.events import MicroBatch, Update
from rlstep_hooks.show.page.model import RolloutRow, Stretch
from rlstep_hooks.show.page.moments import (
    append_moment,
    begins_stretch,
    left_of,
    observed_moment,
    planned_moment,
    stretches,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.judge.conformance import OrderedEvent
    from rlstep_hooks.judge.timeline import ExpectedEvent, Position
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.events import Rollout
    from rlstep_hooks.show.page.model import Moment

MOST_EXPECTED = 200_000
"""Events of one planned rollout that are looked at; a plan that was read may have any number."""
FIRST, LAST = 10, 4
"""How many stretches of a long rollout are kept: of its beginning, and of its end and around its first difference."""
RAW = 512
"""Largest number of events of one rollout that are kept as they came."""
_ORDER = "RLS2"
"""Rules on counts and order: their place is where the run stood, not the number of an event."""


class Row:
    """One rollout in detail, while its events come. Most rollouts are never drawn, so events become moments only when they must.

    Args:
        number: Counts training rollouts from 0, including those before a resume; None for what came before the first.
        rollout: The rollout; None for what came before the first.
        position: The position in the plan just before it; None if the order of events is not compared.
        problem: The finding to look at first, if it is known already.
    """

    def __init__(
        self, number: int | None, rollout: Rollout | None, position: Position | None, problem: Finding | None = None
    ) -> None:
        self.number = number
        self.rollout = rollout
        self.updates = 0
        """Updates that were applied to the policy."""
        self.differs = False
        """Whether something in the rollout was not as planned."""
        self.cut_short = False
        """Whether the next rollout came before all that was planned for this one."""
        self._position = position
        self._problem = problem
        self._raw: list[OrderedEvent] = []
        """The latest events of the rollout, which are not moments yet."""
        self._expected: dict[int, str] = {}
        """What was expected instead of some of the latest events, by their position in `_raw`."""
        self._moments: _Moments | None = None
        """The events before the latest ones, in which equal events can no longer be told apart."""

    def add(self, event: OrderedEvent, expected: str = "") -> None:
        """Add one event, with what was expected instead; that is empty if the event came as planned."""
        raw = self._raw
        if expected:
            self.differs = True
            self._expected[len(raw)] = expected
        raw.append(event)
        if len(raw) > RAW:
            self._condense(RAW)

    def mark_last(self, expected: str) -> None:
        """Say what was expected instead of the latest event."""
        self.differs = True
        if self._raw:
            self._expected[len(self._raw) - 1] = expected

    def can_mark(self, problem: Finding | None) -> bool:
        """Whether the micro-batch that a finding is about can still be told from the others."""
        return self._moments is None or self._problem is problem or _microbatch_of(problem) is None

    def _condense(self, count: int) -> _Moments:
        """Make moments of the first `count` of the latest events."""
        moments = self._moments = self._moments or _Moments()
        marked = _microbatch_of(self._problem)
        for position, event in enumerate(self._raw[:count]):
            expected = self._expected.get(position, "")
            if not expected and isinstance(event, MicroBatch) and event.role == "policy" and event.index == marked:
                expected = self._problem.expected if self._problem is not None else ""
            moments.add(event, expected)
        self._raw = self._raw[count:]
        self._expected = {position - count: text for position, text in self._expected.items() if position >= count}
        return moments

    def result(self, schedule: Schedule | None, problem: Finding | None) -> RolloutRow | None:
        """The row; None if nothing happened in it.

        Args:
            schedule: The plan, if there is one.
            problem: The finding to look at first.
        """
        self._problem = problem
        moments = self._condense(len(self._raw))
        observed = moments.kept()
        if not observed:
            return None
        planned = {}
        if schedule is not None and (self.differs or self.cut_short):
            planned = self._planned(schedule, set(observed), moments.skipped)
        numbers = sorted(observed | planned)
        lacking = self._missing(observed, moments.count)
        focus = problem.where.rollout if problem is not None else None
        return RolloutRow(
            number=self.number,
            stretches=tuple(
                Stretch(
                    n,
                    observed.get(n, ()),
                    planned.get(n, ()),
                    left_of(planned.get(n, ()), observed.get(n, ())) if n in lacking else (),
                )
                for n in numbers
            ),
            stretches_in_all=max(moments.count, numbers[-1] + 1),
            differs=self.differs,
            cut_short=self.cut_short,
            policy_version=self.rollout.policy_version if self.rollout is not None else 0,
            sampler_version=self.rollout.sampler_version if self.rollout is not None else None,
            focus=focus is not None and self.number == focus,
        )

    def _missing(self, shown: dict[int, tuple[Moment, ...]], count: int) -> range:
        """Numbers of the stretches that may lack something of the plan: the stretch that the first difference ends, or all from
        where the rollout was cut short. In other stretches, events that only moved would look like missing ones."""
        if self.cut_short:
            return range(count - 1, count + LAST)
        first = next((n for n in sorted(shown) if any(moment.expected for moment in shown[n])), None)
        ends = first is not None and bool(shown[first][0].expected)
        return range(first - 1, first) if first is not None and ends else range(0)

    def _planned(self, schedule: Schedule, wanted: set[int], skipped: frozenset[int]) -> dict[int, tuple[Moment, ...]]:
        """The stretches that the plan has for this rollout: those wanted, and a few more if the plan has more.

        Empty if the plan leaves the order of policy and critic free, because its stretches would not stand beside those observed.
        """
        free = schedule.critic is not None and schedule.critic_order == "free"
        if free or self._position is None or self.rollout is None:
            return {}
        planned = {}
        for index, stretch in enumerate(stretches(_expected(schedule, self._position, self.rollout, skipped))):
            if index > max(wanted) + LAST:
                break
            if index in wanted or index > max(wanted):
                planned[index] = stretch
        return planned


class _Moments:
    """Events as moments in stretches. Of many stretches only some are kept."""

    def __init__(self) -> None:
        self.count = 0
        """Stretches so far."""
        self._stretch: list[Moment] = []
        self._kept: dict[int, tuple[Moment, ...]] = {}
        self._recent: deque[tuple[int, tuple[Moment, ...]]] = deque(maxlen=LAST)
        self._until = -1
        self._updates = 0
        self._skipped: set[int] = set()

    @property
    def skipped(self) -> frozenset[int]:
        """Updates of the policy that were not applied, by their number in the rollout."""
        return frozenset(self._skipped)

    def add(self, event: OrderedEvent, expected: str) -> None:
        """Add one event, with what was expected instead."""
        if isinstance(event, Update) and event.role == "policy":
            if not event.applied:
                self._skipped.add(self._updates)
            self._updates += 1
        moment = observed_moment(event, expected)
        if begins_stretch(self._stretch, moment):
            self._end_stretch()
        append_moment(self._stretch, moment)

    def kept(self) -> dict[int, tuple[Moment, ...]]:
        """The stretches that were kept, by number. Nothing can be added after this."""
        self._end_stretch()
        return self._kept | dict(self._recent)

    def _end_stretch(self) -> None:
        if not self._stretch:
            return
        index, stretch = self.count, tuple(self._stretch)
        self._stretch, self.count = [], self.count + 1
        if self._until < 0 and any(moment.expected for moment in stretch):
            self._kept |= dict(self._recent)
            self._until = index + LAST
        if index < FIRST or index <= self._until:
            self._kept[index] = stretch
        self._recent.append((index, stretch))


def _expected(schedule: Schedule, position: Position, rollout: Rollout, skipped: frozenset[int]) -> Iterator[Moment]:
    """The plan of a rollout, up to the next one.

    Args:
        schedule: The plan.
        position: The position just before the rollout.
        rollout: The rollout as observed.
        skipped: The updates of the rollout that were not applied, by their number in it.
    """
    timeline = expected_events(schedule, position)
    expected: ExpectedEvent | None = next(timeline, None)
    if expected is None:
        return
    rollouts = updates = 0
    for _ in range(MOST_EXPECTED):
        if isinstance(expected, ExpectedRollout):
            rollouts += 1
            if rollouts > 1:
                return
        yield planned_moment(expected)
        outcome: bool | int | None = rollout.samples if isinstance(expected, ExpectedRollout) else None
        if isinstance(expected, ExpectedUpdate) and expected.role == "policy":
            outcome = updates not in skipped
            updates += 1
        try:
            expected = timeline.send(outcome)
        except StopIteration:
            return


def _microbatch_of(problem: Finding | None) -> int | None:
    """Number of the micro-batch that a finding is about; None if it is about something else."""
    return None if problem is None or problem.code.startswith(_ORDER) else problem.where.microbatch
