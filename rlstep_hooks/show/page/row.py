"""One rollout in detail, collected while its events come. Of a rollout with many updates only some stretches are kept."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.timeline import ExpectedRollout, ExpectedUpdate, expected_events
from rlstep_hooks.record.events import Update
from rlstep_hooks.show.page.model import RolloutRow, Stretch
from rlstep_hooks.show.page.moments import append_moment, begins_stretch, left_of, planned_moment, stretches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.judge.conformance import OrderedEvent
    from rlstep_hooks.judge.timeline import ExpectedEvent, Position
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.events import Rollout
    from rlstep_hooks.show.page.model import Moment

FIRST, LAST = 10, 4
"""Stretches kept of a long rollout: of its beginning, and of its end and around its first difference."""


class Row:
    """One rollout in detail, while its events come."""

    def __init__(self, number: int | None, rollout: Rollout | None, position: Position | None) -> None:
        self._number = number
        self._rollout = rollout
        self._position = position
        self._stretch: list[Moment] = []
        self._kept: dict[int, tuple[Moment, ...]] = {}
        self._recent: deque[tuple[int, tuple[Moment, ...]]] = deque(maxlen=LAST)
        self._until = -1
        self._count = 0
        self._applied: dict[int, bool] = {}
        """Updates of this rollout that were not applied, by their number in it."""
        self._updates = 0

    def add(self, moment: Moment, event: OrderedEvent) -> None:
        """Add one event."""
        if isinstance(event, Update) and event.role == "policy":
            if not event.applied:
                self._applied[self._updates] = False
            self._updates += 1
        if begins_stretch(self._stretch, moment):
            self._end_stretch()
        append_moment(self._stretch, moment)

    def mark_last(self, expected: str) -> None:
        """Say what was expected where the latest event came."""
        if self._stretch:
            self._stretch[-1] = msgspec.structs.replace(self._stretch[-1], expected=expected)

    def _end_stretch(self) -> None:
        if not self._stretch:
            return
        index, stretch = self._count, tuple(self._stretch)
        self._stretch, self._count = [], self._count + 1
        if self._until < 0 and any(moment.expected for moment in stretch):
            self._kept |= dict(self._recent)
            self._until = index + LAST
        if index < FIRST or index <= self._until:
            self._kept[index] = stretch
        self._recent.append((index, stretch))

    def result(
        self, schedule: Schedule | None, *, differs: bool, cut_short: bool, focus: int | None
    ) -> RolloutRow | None:
        """The row; None where nothing happened in it."""
        self._end_stretch()
        observed = self._kept | dict(self._recent)
        if not observed:
            return None
        planned = self._planned(schedule, set(observed)) if schedule is not None and (differs or cut_short) else {}
        numbers = sorted(observed | planned)
        lacking = self._missing(observed, cut_short=cut_short)
        return RolloutRow(
            number=self._number,
            stretches=tuple(
                Stretch(
                    n,
                    observed.get(n, ()),
                    planned.get(n, ()),
                    left_of(planned.get(n, ()), observed.get(n, ())) if n in lacking else (),
                )
                for n in numbers
            ),
            stretches_in_all=max(self._count, numbers[-1] + 1),
            differs=differs,
            cut_short=cut_short,
            policy_version=self._rollout.policy_version if self._rollout is not None else 0,
            sampler_version=self._rollout.sampler_version if self._rollout is not None else None,
            focus=focus is not None and self._number == focus,
        )

    def _missing(self, shown: dict[int, tuple[Moment, ...]], *, cut_short: bool) -> range:
        """Stretches that may lack something of the plan: one that the first difference ends, or all from where the rollout was
        cut short. In others a shift would look like a lack."""
        if cut_short:
            return range(self._count - 1, self._count + LAST)
        first = next((n for n in sorted(shown) if any(moment.expected for moment in shown[n])), None)
        ends = first is not None and bool(shown[first][0].expected)
        return range(first - 1, first) if first is not None and ends else range(0)

    def _planned(self, schedule: Schedule, wanted: set[int]) -> dict[int, tuple[Moment, ...]]:
        """The stretches that the plan has for this rollout, of those wanted; and a few more where it has more.

        None where the plan leaves the order of policy and critic free: its stretches would not stand beside those observed.
        """
        free = schedule.critic is not None and schedule.critic_order == "free"
        if free or self._position is None or self._rollout is None:
            return {}
        planned = {}
        for index, stretch in enumerate(stretches(self._expected(schedule, self._position, self._rollout))):
            if index > max(wanted) + LAST:
                break
            if index in wanted or index > max(wanted):
                planned[index] = stretch
        return planned

    def _expected(self, schedule: Schedule, position: Position, rollout: Rollout) -> Iterator[Moment]:
        """The plan of this rollout, to where the next one begins."""
        timeline = expected_events(schedule, position)
        expected: ExpectedEvent | None = next(timeline, None)
        rollouts = updates = 0
        while expected is not None:
            if isinstance(expected, ExpectedRollout):
                rollouts += 1
                if rollouts > 1:
                    return
            yield planned_moment(expected)
            outcome: bool | int | None = rollout.samples if isinstance(expected, ExpectedRollout) else None
            if isinstance(expected, ExpectedUpdate) and expected.role == "policy":
                outcome = self._applied.get(updates, True)
                updates += 1
            try:
                expected = timeline.send(outcome)
            except StopIteration:
                return
