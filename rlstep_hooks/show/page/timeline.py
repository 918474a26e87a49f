"""Collects the timeline of one trainer while its run is judged: all rollouts for the overview, a few of them in detail.

What is drawn as different from the plan is what the judge found at each event; nothing is matched here. Memory is bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rlstep_hooks.record.events import EpochEnd, MicroBatch, Refresh, Rollout, RunEnded, RunStarted, Update, WeightSync
from rlstep_hooks.show.page.model import Timeline
from rlstep_hooks.show.page.moments import expectation
from rlstep_hooks.show.page.overview import Overview
from rlstep_hooks.show.page.row import Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.judge.conformance import OrderedEvent
    from rlstep_hooks.judge.judge import Judge
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.events import AnyEvent

BEFORE, AFTER = 2, 2
"""Rollouts shown in detail before and after the one with the finding to look at first."""
RECENT = 16
"""How many of the latest rollouts are kept in detail: a finding may be made some rollouts after the one that it is about."""
_DRAWN = frozenset({Rollout, Refresh, MicroBatch, Update, WeightSync, EpochEnd, RunEnded})


class TimelineWatcher:
    """Watches one trainer.

    Args:
        rank: The trainer's rank; None for the first one that is seen.
        problem: The finding to look at first, if it is known before the run is judged.
    """

    def __init__(self, rank: int | None = None, problem: Finding | None = None) -> None:
        self._rank = rank
        self._known = problem
        self._problem = problem
        """The finding to look at first: the known one, or else the first error so far, or else the first warning so far."""
        self._schedule: Schedule | None = None
        self._overview = Overview()
        self._before_first = Row(None, None, None, problem)
        self._rows: dict[int, Row] = {}
        """Rollouts in detail, by number."""
        self._first: int | None = None
        """Number of the first rollout."""
        self._number = -1
        """Number of the current or latest rollout."""
        self._row = self._before_first
        """The current rollout, or the latest."""
        self._shown_first = self._shown_now = range(0)
        """Rollouts that are shown in detail if there is no finding, and those around the finding to look at first."""
        self._judge: Judge | None = None
        """The judge of the current rollout; None once that is over."""

    def watch(self, rank: int, event: AnyEvent, judge: Judge, findings: Sequence[Finding]) -> None:
        """See one event after it was judged."""
        if rank != self._rank:
            if self._rank is not None:
                return
            self._rank = rank
        kind = type(event)
        if judge.differences:
            self._add_differing(cast("OrderedEvent", event), judge)
        elif kind is MicroBatch or kind in _DRAWN:
            self._add(cast("OrderedEvent", event), judge)
        elif kind is RunStarted:
            self._schedule = cast("RunStarted", event).schedule
        for finding in findings:
            self._consider(finding)

    def _add(self, event: OrderedEvent, judge: Judge, expected: str = "") -> None:
        if type(event) is Rollout:
            if event.purpose == "evaluation":
                return
            self._begin_rollout(event, judge)
        elif type(event) is Update and event.applied and event.role == "policy":
            self._row.updates += 1
        self._row.add(event, expected)

    def _add_differing(self, event: OrderedEvent, judge: Judge) -> None:
        own = [found for found in judge.differences if found.observed is event]
        late = [found for found in judge.differences if found.observed is not event]
        if late:  # only this event could tell that the one before it was not as planned
            self._row.mark_last(expectation(late[0]))
        if isinstance(event, Rollout):  # the plan had more of the rollout before
            self._row.cut_short = any(found.aspect == "kind" for found in own)
        self._add(event, judge, expectation(own[0]) if own else "")

    def _consider(self, finding: Finding) -> None:
        """Look at the first error, or at the first warning as long as there is no error."""
        if self._known is not None or finding.severity == "info":
            return
        if self._problem is None or (finding.severity == "error" != self._problem.severity):
            self._problem = finding
            self._shown_now = self._shown(finding)

    def _begin_rollout(self, event: Rollout, judge: Judge) -> None:
        self._end_rollout()
        self._number = judge.rollout if self._schedule is not None else self._number + 1
        if self._first is None:
            self._first = self._number
            self._shown_first, self._shown_now = self._shown(None), self._shown(self._problem)
        self._judge = judge
        self._row = self._rows[self._number] = Row(self._number, event, judge.position_before(event), self._known)

    def _end_rollout(self) -> None:
        """Count the current rollout, and forget an old one."""
        row, judge = self._row, self._judge
        if judge is None or row.number is None or row.rollout is None:
            return
        self._overview.add(row.number, row.rollout, updates=row.updates, differs=row.differs, compared=judge.compares)
        self._judge = None
        old = row.number - RECENT
        if old in self._rows and old not in self._shown_now and old not in self._shown_first:
            del self._rows[old]

    def _shown(self, problem: Finding | None) -> range:
        """Numbers of the rollouts that are shown in detail if this is the finding to look at first."""
        focus = problem.where.rollout if problem is not None else None
        first = self._first or 0
        if focus is None:
            return range(first, first + BEFORE + AFTER + 1)
        return range(max(focus - BEFORE, first), focus + AFTER + 1)

    def timeline(self, *, rank: int, ranks: int, problem: Finding | None) -> Timeline | None:
        """What was collected, once the run was judged.

        Args:
            rank: The trainer to show.
            ranks: Trainers of the run.
            problem: The finding to look at first.

        Returns:
            The timeline; None if another trainer was watched, or if what the finding is about is no longer kept in detail. A watcher
            that is told rank and finding beforehand keeps it.
        """
        if rank != self._rank:
            return None
        self._end_rollout()
        shown = self._shown(problem)
        rows = [self._rows.get(number) for number in shown if number <= self._number]
        if self._first is None or self._first in shown or not rows:
            rows.insert(0, self._before_first)
        drawn = [row.result(self._schedule, problem) for row in rows if row is not None and row.can_mark(problem)]
        if len(drawn) < len(rows):
            return None
        cells, per_cell = self._overview.result()
        return Timeline(
            rank=rank,
            ranks=ranks,
            cells=cells,
            rollouts_per_cell=per_cell,
            rows=tuple(row for row in drawn if row is not None),
            planned_updates=self._schedule.updates_per_rollout if self._schedule is not None else None,
        )
