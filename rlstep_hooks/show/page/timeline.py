"""One pass over a trainer's events: every rollout into a cell of the overview, a few rollouts into detail. Memory stays bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.conformance import OrderedEvent, matcher
from rlstep_hooks.judge.timeline import cursor_at, go_on, position_of
from rlstep_hooks.record.events import MicroBatch, Rollout, RunStarted, Unobserved, Update, WeightSync
from rlstep_hooks.show.page.model import Cell, Timeline
from rlstep_hooks.show.page.moments import expectation, observed_moment
from rlstep_hooks.show.page.row import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rlstep_hooks.judge.conformance import Conformance, ConformanceOfRoles, Difference
    from rlstep_hooks.judge.timeline import Cursor
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.events import AnyEvent
    from rlstep_hooks.show.page.model import RolloutRow

CELLS = 240
"""Cells of the overview, at most; a long run puts several rollouts into each."""
BEFORE, AFTER = 2, 2
"""Rollouts shown in detail before and after the one with the first difference."""
_ORDER = "RLS2"
"""Rules on counts and order, whose place is where the run stood and not the number of an event."""


def timeline_of(
    events: Iterable[AnyEvent], *, rank: int, ranks: int, rollouts: int, problem: Finding | None
) -> Timeline:
    """The timeline of one trainer.

    Args:
        events: Its events as the judge reads them.
        rank: Which trainer it is.
        ranks: Trainers of the run.
        rollouts: Training rollouts to come, which decides how many of them a cell holds.
        problem: The finding to look at first.
    """
    collector = _Collector(rollouts, problem)
    for event in events:
        collector.hear(event)
    return collector.result(rank, ranks)


class _Collector:
    def __init__(self, rollouts: int, problem: Finding | None) -> None:
        self._per_cell = max(-(-rollouts // CELLS), 1)
        self._problem = problem
        self._schedule: Schedule | None = None
        self._matcher: Conformance | ConformanceOfRoles | None = None
        self._cursor: Cursor | None = None
        self._cells: dict[int, _CellTotals] = {}
        self._first_number: int | None = None
        self._rows: list[RolloutRow] = []
        self._row: Row | None = Row(None, None, None)
        self._rollout: Rollout | None = None
        self._number = 0
        """Of the rollout under way."""
        self._updates = 0
        self._differs = False

    def hear(self, event: AnyEvent) -> None:
        """Take one event."""
        if isinstance(event, RunStarted):
            self._start(event)
        elif isinstance(event, Unobserved):
            self._matcher = None if event.what == "order" else self._matcher
        elif isinstance(event, OrderedEvent) and not (isinstance(event, Rollout) and event.purpose == "evaluation"):
            self._ordered(event)

    def _start(self, event: RunStarted) -> None:
        self._schedule = event.schedule
        if event.schedule is not None:
            stated = event.facts.get("position", {"updates": event.start_updates, "version": event.start_updates})
            start = position_of(event.schedule, stated)
            self._matcher = matcher(event.schedule, start)
            self._cursor = cursor_at(event.schedule, start)

    def _ordered(self, event: OrderedEvent) -> None:
        found = self._differences(event)
        differences = [difference for difference in found if difference.observed is event]
        if len(found) > len(differences):
            self._mark_last(found[0])
        if isinstance(event, Rollout):
            self._close(cut_short=any(found.aspect == "kind" for found in differences))
            self._open(event)
        self._differs = self._differs or bool(differences)
        self._updates += isinstance(event, Update) and event.applied and event.role == "policy"
        if self._row is not None:
            expected = self._expected_at(event, differences)
            self._row.add(observed_moment(event, expected), event)
        if self._cursor is not None:
            go_on(self._cursor, event)

    def _mark_last(self, difference: Difference) -> None:
        """The event before this one differs, as is known only now."""
        self._differs = True
        if self._row is not None:
            self._row.mark_last(expectation(difference))

    def _differences(self, event: OrderedEvent) -> Sequence[Difference]:
        if self._matcher is None or self._schedule is None or not _is_planned(self._schedule, event):
            return []
        return self._matcher.observe(event)

    def _expected_at(self, event: OrderedEvent, differences: Sequence[Difference]) -> str:
        """What was expected where this event came; empty where nothing was found at it."""
        if differences:
            return expectation(differences[0])
        problem = self._problem
        if problem is None or problem.code.startswith(_ORDER) or not isinstance(event, MicroBatch):
            return ""
        return problem.expected if event.role == "policy" and event.index == problem.where.microbatch else ""

    def _open(self, event: Rollout) -> None:
        rollout = self._cursor.rollouts if self._cursor is not None else event.index
        if self._first_number is None:
            self._first_number = rollout
        self._rollout, self._updates, self._differs = event, 0, False
        self._number = rollout
        near = range(self._first_number, self._first_number + BEFORE + AFTER + 1)
        if self._focus is not None:
            near = range(self._focus - BEFORE, self._focus + AFTER + 1)
        if rollout not in near:
            self._row = None
            return
        position = self._cursor.at_rollout(event) if self._cursor is not None else None
        self._row = Row(rollout, event, position)

    def _close(self, *, cut_short: bool) -> None:
        """The rollout under way is over."""
        if self._rollout is not None:
            index = min((self._number - (self._first_number or 0)) // self._per_cell, CELLS - 1)
            self._cells.setdefault(index, _CellTotals(self._number)).add(
                self._number, self._updates, self._rollout, differs=self._differs, compared=self._matcher is not None
            )
        if self._row is not None:
            row = self._row.result(self._schedule, differs=self._differs, cut_short=cut_short, focus=self._focus)
            if row is not None:
                self._rows.append(row)
        self._row = self._rollout = None

    @property
    def _focus(self) -> int | None:
        """The rollout of the finding to look at first."""
        return self._problem.where.rollout if self._problem is not None else None

    def result(self, rank: int, ranks: int) -> Timeline:
        """What was collected."""
        self._close(cut_short=False)
        if len(self._rows) > 1 and self._rows[0].number is None and self._rows[1].number != self._first_number:
            del self._rows[0]  # what came before the first rollout, which is not near
        schedule = self._schedule
        return Timeline(
            rank=rank,
            ranks=ranks,
            cells=tuple(cell.result() for _, cell in sorted(self._cells.items())),
            rollouts_per_cell=self._per_cell,
            rows=tuple(self._rows),
            planned_updates=schedule.updates_per_rollout if schedule is not None else None,
        )


class _CellTotals:
    """Some rollouts, added up."""

    def __init__(self, first: int) -> None:
        self._first = self._last = first
        self._rollouts = self._updates = self._differing = self._uncompared = 0
        self._oldest: Rollout | None = None

    def add(self, number: int, updates: int, rollout: Rollout, *, differs: bool, compared: bool) -> None:
        """Add one rollout."""
        self._last = number
        self._rollouts += 1
        self._updates += updates
        self._differing += differs
        self._uncompared += not compared
        if self._oldest is None or _age(rollout) > _age(self._oldest):
            self._oldest = rollout

    def result(self) -> Cell:
        """The sums."""
        assert self._oldest is not None  # a cell is made for a rollout
        return Cell(
            first=self._first,
            last=self._last,
            updates=self._updates / self._rollouts,
            differing=self._differing,
            uncompared=self._uncompared,
            policy_version=self._oldest.policy_version,
            sampler_version=self._oldest.sampler_version,
        )


def _age(rollout: Rollout) -> int:
    return -1 if rollout.sampler_version is None else rollout.policy_version - rollout.sampler_version


def _is_planned(schedule: Schedule, event: OrderedEvent) -> bool:
    """Whether the plan says anything of this event."""
    if isinstance(event, Update | MicroBatch) and event.role == "critic":
        return schedule.critic is not None
    return not (isinstance(event, WeightSync) and schedule.syncs == "unseen")
