"""A page shows what the judge found: there is one reading and one matching, and no second one can come to another result."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlstep_hooks
from rlstep_hooks.record import tail
from rlstep_hooks.record.events import Measured, MicroBatchValues, Rollout, Update
from rlstep_hooks.record.ledger import FolderLedger, rank_process, records
from rlstep_hooks.record.wire import decode
from rlstep_hooks.show.page import build
from rlstep_hooks.show.page.build import page_of
from rlstep_hooks.show.page.overview import CELLS
from rlstep_hooks.show.page.row import RAW
from rlstep_hooks.show.page.timeline import RECENT, TimelineWatcher
from tests.reports import recorded_page, report_of
from tests.scripted import Case, LoaderPosition, cases, make_plan, scripted_run
from tests.scripted_phases import PhaseCase, phase_cases, scripted_phases, write_records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.judge.conformance import Difference
    from rlstep_hooks.judge.judge import Judge
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.events import AnyEvent
    from rlstep_hooks.show.page.model import Page

PLAN = make_plan(iterations=3, max_steps=180, rows=180)
"""60 rollouts of 3 updates, each after 2 micro-batches."""


class Both:
    """Watches for a page, and keeps all that the judge found."""

    def __init__(self) -> None:
        self.page = TimelineWatcher()
        self.found: dict[int | None, list[Difference]] = {}
        """Differences of rank 0, by rollout; None for those before the first rollout."""
        self.rollouts: list[int] = []

    def watch(self, rank: int, event: AnyEvent, judge: Judge, findings: Sequence[Finding]) -> None:
        self.page.watch(rank, event, judge, findings)
        if rank:
            return
        late = [difference for difference in judge.differences if difference.observed is not event]
        self._keep(late)
        if isinstance(event, Rollout) and event.purpose == "training":
            self.rollouts.append(judge.rollout)
        self._keep([difference for difference in judge.differences if difference.observed is event])

    def _keep(self, differences: list[Difference]) -> None:
        if differences:
            number = self.rollouts[-1] if self.rollouts else None
            self.found.setdefault(number, []).extend(differences)


def write(folder: Path, events: list[AnyEvent]) -> None:
    ledger = FolderLedger(folder, "run", rank_process(0))
    ledger.write(*events)
    ledger.close()


def agrees(folder: Path) -> Page:
    """Judge a run once for a page, and check that the page has just the differences that the judge found."""
    both = Both()
    report = report_of(folder, watcher=both)
    found = records(folder)[report.run]
    shown = page_of(report, found, both.page)
    cells = shown.timeline.cells
    if report.schedule is None:  # what is not judged is drawn without a comparison
        assert shown.timeline.differing == 0
        return shown
    assert sum(cell.last - cell.first + 1 for cell in cells) == len(both.rollouts)
    if shown.timeline.rank == 0 and len(both.rollouts) <= CELLS:
        assert [cell.first for cell in cells] == both.rollouts
        assert {cell.first for cell in cells if cell.differing} == both.found.keys() & set(both.rollouts)
    for row in shown.timeline.rows:
        whole = len(row.stretches) == row.stretches_in_all and not row.has_plan
        if shown.timeline.rank == 0 and whole:
            assert row.differs == (row.number in both.found)
    # Whoever has to judge again comes to the same.
    assert page_of(report, found, TimelineWatcher()).timeline == shown.timeline
    return shown


def damaged(events: list[AnyEvent], data: st.DataObject) -> list[AnyEvent]:
    """A run that lacks an event or has it twice."""
    index = data.draw(st.integers(1, len(events) - 1))
    return [*events[:index], *[events[index]] * data.draw(st.sampled_from([0, 1, 2])), *events[index + 1 :]]


@given(case=cases(), data=st.data())
def test_a_page_has_the_differences_that_the_judge_found(
    case: Case, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("run")
    write(folder, damaged(scripted_run(case.schedule), data))
    agrees(folder)


@given(case=phase_cases(), data=st.data())
def test_a_page_of_several_processes_has_the_differences_that_the_judge_found(
    case: PhaseCase, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("run")
    script = scripted_phases(case)
    index = data.draw(st.integers(0, len(script) - 1))
    times = data.draw(st.sampled_from([0, 1, 2]))
    write_records(folder, [*script[:index], *[script[index]] * times, *script[index + 1 :]])
    agrees(folder)


@pytest.mark.parametrize("lost", [None, 1, 100, 178])
def test_a_report_with_a_page_reads_each_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int | None
) -> None:
    events = [e for e in scripted_run(PLAN) if not (isinstance(e, Update) and e.index == lost)]
    write(tmp_path, events)
    lines: list[bytes] = []

    def counted(line: bytes) -> AnyEvent:
        lines.append(line)
        return decode(line)

    monkeypatch.setattr(tail, "decode", counted)
    monkeypatch.setattr(build, "replay", None)
    shown = recorded_page(tmp_path)
    assert len(lines) == len(events)
    assert bool(shown.timeline.differing) is (lost is not None)
    if lost is not None:
        assert any(row.focus and row.differs for row in shown.timeline.rows)


@pytest.mark.parametrize("rollout", [3, 59 - RECENT, 59])
def test_a_finding_that_is_made_at_the_end_of_the_run_is_shown_at_its_rollout(tmp_path: Path, rollout: int) -> None:
    first = 6 * rollout
    far = MicroBatchValues(index=first, tokens=8, max_abs_log_ratio=5.0, mean_abs_log_ratio=2.0)
    events = [event for event in scripted_run(PLAN) if not isinstance(event, Measured)]
    write(tmp_path, [*events[:-1], Measured(microbatches=(far,)), events[-1]])
    shown = agrees(tmp_path)
    assert shown.problem is not None
    assert (shown.problem.where.rollout, shown.problem.where.microbatch) == (rollout, first)
    (row,) = (row for row in shown.timeline.rows if row.focus)
    (marked,) = row.differences
    assert (marked.kind, marked.times) == ("microbatch", 1)


def test_a_finding_within_a_long_rollout_marks_its_micro_batch(tmp_path: Path) -> None:
    first = 2 * RAW
    events = scripted_run(make_plan(iterations=RAW, max_steps=2 * RAW))
    far = MicroBatchValues(index=first, tokens=8, max_abs_log_ratio=50.0, mean_abs_log_ratio=20.0)
    with_far = [
        msgspec.structs.replace(event, microbatches=tuple(far if v.index == first else v for v in event.microbatches))
        if isinstance(event, Measured)
        else event
        for event in events
    ]
    write(tmp_path, with_far)
    shown = agrees(tmp_path)
    assert shown.problem is not None
    assert shown.problem.where.microbatch == first
    (row,) = (row for row in shown.timeline.rows if row.focus)
    assert [(moment.kind, moment.times) for moment in row.differences] == [("microbatch", 1)]


def test_a_resumed_run_has_its_rollouts_where_the_report_names_them(tmp_path: Path) -> None:
    start = LoaderPosition(updates=90, version=90, epoch_microbatches=180)
    events = scripted_run(PLAN, start=start)
    write(tmp_path, [e for e in events if not (isinstance(e, Update) and e.index == 100)])
    shown = agrees(tmp_path)
    assert shown.timeline.cells[0].first == 30
    (row,) = (row for row in shown.timeline.rows if row.focus)
    assert shown.problem is not None
    assert row.number == shown.problem.where.rollout == 33
    assert 33 in {cell.first for cell in shown.timeline.cells if cell.differing}


def test_nothing_that_shows_a_run_matches_its_events() -> None:
    matching = {"matcher", "Conformance", "ConformanceOfRoles", "cursor_at", "LoaderCursor", "PhaseCursor", "Cursor"}
    for path in Path(rlstep_hooks.__file__).parent.joinpath("show").rglob("*.py"):
        names = {
            alias.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert not names & matching, path
