"""The page of a report: it shows what was recorded, in bounded size, and contains no markup but its own."""

from __future__ import annotations

import io
import re
import tracemalloc
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.replay import trainer_events
from rlstep_hooks.planning.token_row import Piece, TokenRow
from rlstep_hooks.record.events import (
    EpochEnd,
    Measured,
    MicroBatch,
    MicroBatchValues,
    Refresh,
    Rollout,
    RolloutValues,
    RunEnded,
    RunStarted,
    Unobserved,
    Update,
    WeightSync,
)
from rlstep_hooks.record.ledger import FolderLedger, rank_process, records
from rlstep_hooks.show.console import finding_lines
from rlstep_hooks.show.page import pictures
from rlstep_hooks.show.page.overview import CELLS
from rlstep_hooks.show.page.row import FIRST, LAST
from rlstep_hooks.show.page.timeline import TimelineWatcher
from rlstep_hooks.show.page.writer import page_html
from tests.reports import recorded_page
from tests.scripted import Case, cases, make_plan, scripted_run, started
from tests.scripted_phases import PhaseCase, phase_cases, phase_plan, scripted_phases, write_records

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rlstep_hooks.record.events import AnyEvent
    from rlstep_hooks.show.page.model import Moment, Page, RolloutRow

PLAN = make_plan(iterations=3, max_steps=60, rows=60)
"""20 rollouts of 3 updates, each after 2 micro-batches."""
HOSTILE = {
    "<script>alert(1)</script>": "</style><img src=x onerror=alert(2)>",
    'quote" onload="alert(3)': 'it\'s <b>bold</b> & "more"',
    "right\u202eto left": "bell\x07 and \u2066isolate and lone \ud800",
    "{{ 7 * 7 }}": "{% include 'page.css' %}",
}
"""Names and values of settings that would do something in a page, a style sheet or a template."""


def page(folder: Path, events: Iterable[AnyEvent]) -> Page:
    """The page of one process's record."""
    ledger = FolderLedger(folder / "log", "run", rank_process(0))
    ledger.write(*events)
    ledger.close()
    return recorded_page(folder / "log")


def without(events: list[AnyEvent], kind: type, index: int) -> list[AnyEvent]:
    """A run that lacks one event."""
    return [event for event in events if not (isinstance(event, kind) and event.index == index)]  # type: ignore[attr-defined]


def singly(moments: Iterable[Moment]) -> list[str]:
    """Kinds of events, one for each."""
    return [moment.kind for moment in moments for _ in range(moment.times)]


def observed(row: RolloutRow) -> list[str]:
    return [kind for stretch in row.stretches for kind in singly(stretch.observed)]


class Reader(HTMLParser):
    """A page as a browser takes it apart."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag in ("td", "th", "dt", "dd", "li", "p"):
            self.text += " "

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for found, attributes in self.tags if found == tag]


def read(shown: Page) -> Reader:
    reader = Reader(page_html(shown))
    assert reader.open == []
    return reader


# The model


def test_a_run_as_planned_has_every_rollout_in_a_cell_and_the_first_in_detail(tmp_path: Path) -> None:
    shown = page(tmp_path, scripted_run(PLAN))
    assert (shown.verdict, shown.problem) == ("PASS", None)
    assert [(cell.first, cell.last, cell.updates) for cell in shown.timeline.cells] == [(n, n, 3) for n in range(20)]
    assert shown.timeline.differing == 0
    assert [row.number for row in shown.timeline.rows] == [0, 1, 2, 3, 4]
    assert not any(row.differs or row.cut_short or row.has_plan for row in shown.timeline.rows)
    first = shown.timeline.rows[0]
    assert [singly(stretch.observed) for stretch in first.stretches] == [
        ["rollout", "refresh"],
        *[["microbatch", "microbatch", "update"]] * 3,
    ]
    lags = [moment.lag for stretch in first.stretches[1:] for moment in stretch.observed if moment.kind == "microbatch"]
    assert lags == [0, 1, 2]


@pytest.mark.parametrize("number", [0, 7, 18])
def test_the_first_difference_is_zoomed_in_on_and_what_is_missing_is_named(tmp_path: Path, number: int) -> None:
    lost = 3 * number + 1
    shown = page(tmp_path, without(scripted_run(PLAN), Update, lost))
    assert shown.verdict == "FAIL"
    assert shown.problem is not None
    (focus,) = (row for row in shown.timeline.rows if row.focus)
    assert focus.number == number == shown.problem.where.rollout
    assert focus.differs
    assert {row.number for row in shown.timeline.rows} == set(range(number - 2, number + 3)) & set(range(20))
    (differing,) = (moment for stretch in focus.stretches for moment in stretch.observed if moment.expected)
    assert (differing.kind, differing.expected) == ("microbatch", "an update")
    planned = [kind for stretch in focus.stretches for kind in singly(stretch.planned)]
    assert planned == ["rollout", "refresh", *["microbatch", "microbatch", "update"] * 3]


def test_an_update_that_a_sync_of_weights_came_before_is_drawn_as_missing(tmp_path: Path) -> None:
    script = scripted_phases(PhaseCase(schedule=phase_plan(syncs="first_and_after_updates")))
    lost = next(
        i for i, (process, e) in enumerate(script) if process == "rank0" and isinstance(e, Update) and e.index == 3
    )
    write_records(tmp_path, [*script[:lost], *script[lost + 1 :]])
    (focus,) = (row for row in recorded_page(tmp_path).timeline.rows if row.focus)
    assert [singly(stretch.missing) for stretch in focus.stretches] == [[], [], ["update"], []]
    assert focus.stretches[3].observed[0].expected == "an update"


def test_a_rollout_that_comes_too_early_cuts_the_one_before_short(tmp_path: Path) -> None:
    events = scripted_run(PLAN)
    cut = [e for e in events if not (isinstance(e, MicroBatch | Update) and e.index in _after_first_window(e))]
    shown = page(tmp_path, cut)
    row = next(row for row in shown.timeline.rows if row.number == 1)
    assert row.cut_short
    missing = [kind for stretch in row.stretches for kind in singly(stretch.missing)]
    assert missing == ["microbatch", "microbatch", "update"] * 2
    assert shown.timeline.rows[2].stretches[0].observed[0].expected == "a micro-batch"


def _after_first_window(event: MicroBatch | Update) -> range:
    """Numbers of what follows the first update of rollout 1."""
    return range(8, 12) if isinstance(event, MicroBatch) else range(4, 6)


def test_a_finding_on_a_micro_batch_marks_it(tmp_path: Path) -> None:
    far = MicroBatchValues(index=30, tokens=8, max_abs_log_ratio=5.0, mean_abs_log_ratio=2.0)
    changed = [
        msgspec.structs.replace(event, microbatches=tuple(far if v.index == 30 else v for v in event.microbatches))
        if isinstance(event, Measured)
        else event
        for event in scripted_run(PLAN)
    ]
    shown = page(tmp_path, changed)
    assert shown.problem is not None
    assert shown.problem.where.microbatch == 30
    (row,) = (row for row in shown.timeline.rows if row.focus)
    marked = [moment for stretch in row.stretches for moment in stretch.observed if moment.expected]
    assert [(moment.kind, moment.lag, moment.times) for moment in marked] == [("microbatch", 0, 1)]
    assert not row.differs
    assert not row.has_plan


def test_a_wrong_row_of_a_finding_is_shown_piece_by_piece(tmp_path: Path) -> None:
    pieces = (
        Piece("prompt", trained=False, tokens=4, text="add 1"),
        Piece("sampled", trained=True, tokens=3, text="<tool>\n", turn=1),
        Piece("written", trained=True, tokens=9, text="</span><script>alert(1)</script>", wrong=True),
    )
    found = RolloutValues(
        index=3,
        masks_wrong=1,
        rows_joined=8,
        masks_like="tokens of a tool are trained",
        masks_at="sample 2",
        wrong_row=TokenRow("sample 2", pieces, left_out=1200),
    )
    events = scripted_run(PLAN)
    last = max(place for place, event in enumerate(events) if isinstance(event, Rollout) and event.index == 3)
    shown = page(tmp_path, [*events[: last + 1], Measured(at=events[last].at, rollouts=(found,)), *events[last + 1 :]])
    assert shown.problem is not None
    assert (shown.problem.code, shown.problem.row) == ("RLS518", found.wrong_row)
    drawn = read(shown)
    text = " ".join(drawn.text.split())
    assert "sample 2 add 1<tool> </span><script>alert(1)</script> … 1 200 more tokens" in text
    assert "tool or template, trained: 9 tokens" in text
    (wrong, in_words) = [each for each in drawn.named("span") if "wrong" in str(each.get("class"))]
    assert (wrong["class"], in_words["class"]) == ("written wrong", "written wrong")
    lines = io.StringIO()
    Console(file=lines, width=100).print(finding_lines(shown.problem))
    assert "✗ tool or template, trained (9) </span><script>alert(1)</script>" in " ".join(lines.getvalue().split())


@given(case=cases())
def test_any_run_as_planned_shows_its_events_and_no_difference(
    case: Case, tmp_path_factory: pytest.TempPathFactory
) -> None:
    events = scripted_run(case.schedule)
    shown = page(tmp_path_factory.mktemp("page"), events)
    assert shown.timeline.differing == 0
    updates = sum(cell.updates * (cell.last - cell.first + 1) for cell in shown.timeline.cells)
    assert round(updates) == shown.report.counts.updates
    kinds = {Rollout: "rollout", Refresh: "refresh", MicroBatch: "microbatch", Update: "update", EpochEnd: "epoch_end"}
    recorded = [kinds[type(event)] for event in events if type(event) in kinds]
    everything = [kind for row in shown.timeline.rows for kind in observed(row)]
    if len(shown.timeline.rows) == shown.report.counts.rollouts and all(_is_whole(row) for row in shown.timeline.rows):
        assert [kind for kind in everything if kind != "run_ended"] == recorded
    read(shown)


def _is_whole(row: RolloutRow) -> bool:
    return len(row.stretches) == row.stretches_in_all


@given(case=cases(), data=st.data())
def test_any_run_can_be_drawn_whatever_it_lacks(
    case: Case, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    events = scripted_run(case.schedule)
    index = data.draw(st.integers(0, len(events) - 1))
    times = data.draw(st.sampled_from([0, 2]))
    left = [*events[:index], *[events[index]] * times, *events[index + 1 :]]
    shown = page(tmp_path_factory.mktemp("page"), left)
    problem = shown.problem
    if problem is not None and problem.severity == "error" and problem.where.rollout is not None:
        # Without a rollout all events are before the first.
        recorded = any(isinstance(event, Rollout) for event in left)
        assert any(row.number == (problem.where.rollout if recorded else None) for row in shown.timeline.rows)
    read(shown)


@given(case=phase_cases())
def test_trainers_and_controller_give_one_timeline(case: PhaseCase, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("page")
    write_records(folder, scripted_phases(case))
    shown = recorded_page(folder)
    report = shown.report
    assert shown.timeline.differing == 0
    updates = sum(cell.updates * (cell.last - cell.first + 1) for cell in shown.timeline.cells)
    assert round(updates) == report.counts.updates
    if shown.problem is None:
        rows = [row for row in shown.timeline.rows if row.number is not None]
        assert [row.number for row in rows] == list(range(min(report.counts.rollouts, 5)))
    assert {process.name for process in shown.processes} >= {"controller", "rank0"}
    read(shown)


@given(case=phase_cases(), data=st.data())
def test_any_run_of_several_processes_can_be_drawn_whatever_it_lacks(
    case: PhaseCase, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("page")
    script = scripted_phases(case)
    index = data.draw(st.integers(0, len(script) - 1))
    times = data.draw(st.sampled_from([0, 2]))
    write_records(folder, [*script[:index], *[script[index]] * times, *script[index + 1 :]])
    read(recorded_page(folder))


@pytest.mark.parametrize("fault", [False, True])
def test_a_critic_in_any_order_is_drawn_where_it_was_and_beside_no_plan(tmp_path: Path, fault: bool) -> None:
    critic = phase_plan(minibatches=(8,))
    schedule = phase_plan(critic=critic, critic_order="free")
    script = scripted_phases(PhaseCase(schedule=schedule))
    lost = next(
        i for i, (process, e) in enumerate(script) if isinstance(e, Update) and e.role == "policy" and e.index == 2
    )
    write_records(tmp_path, [*script[:lost], *script[lost + 1 :]] if fault else script)
    shown = recorded_page(tmp_path)
    assert bool(shown.timeline.differing) is fault
    row = next(row for row in shown.timeline.rows if row.number == 1)
    assert row.differs is fault
    assert any(moment.critic for stretch in row.stretches for moment in stretch.observed)
    assert not row.has_plan
    assert not any(stretch.missing for stretch in row.stretches)


def test_the_trainer_that_a_finding_names_is_drawn(tmp_path: Path) -> None:
    script = scripted_phases(PhaseCase(schedule=phase_plan(world_size=2)))
    lost = next(
        i for i, (process, e) in enumerate(script) if process == "rank1" and isinstance(e, Update) and e.index == 3
    )
    write_records(tmp_path, [*script[:lost], *script[lost + 1 :]])
    shown = recorded_page(tmp_path)
    assert shown.problem is not None
    assert shown.problem.where.rank == 1
    assert (shown.timeline.rank, shown.timeline.ranks) == (1, 2)
    assert any(row.focus and row.differs for row in shown.timeline.rows)
    assert "Timeline of rank 1 of 2" in read(shown).text


def test_a_sync_of_weights_before_the_first_rollout_has_a_row(tmp_path: Path) -> None:
    schedule = phase_plan(syncs="first_and_after_updates")
    write_records(tmp_path, scripted_phases(PhaseCase(schedule=schedule)))
    rows = recorded_page(tmp_path).timeline.rows
    assert rows[0].number is None
    assert observed(rows[0]) == ["weight_sync"]
    assert observed(rows[1])[-1] == "weight_sync"


def test_a_sampler_that_is_behind_shows(tmp_path: Path) -> None:
    late = [
        msgspec.structs.replace(e, sampler_version=e.policy_version - 3)
        if isinstance(e, Rollout) and e.index == 6
        else e
        for e in scripted_run(PLAN)
    ]
    shown = page(tmp_path, late)
    assert [cell.policy_version - (cell.sampler_version or 0) for cell in shown.timeline.cells] == [
        3 * (number == 6) for number in range(20)
    ]
    assert pictures.most_behind(shown.timeline.cells) == 3
    assert "sampler v15, 3 updates behind" in " ".join(read(shown).text.split())


def test_a_sampler_whose_version_is_not_seen_is_not_drawn(tmp_path: Path) -> None:
    unseen = [
        msgspec.structs.replace(e, sampler_version=None) if isinstance(e, Rollout) else e for e in scripted_run(PLAN)
    ]
    assert "was not seen in this run" in read(page(tmp_path, unseen)).text


# Its size


def test_a_long_run_is_condensed(tmp_path: Path) -> None:
    plan = make_plan(rows=400, iterations=2, max_steps=2000)
    shown = page(tmp_path, without(scripted_run(plan), Update, 1500))
    cells = shown.timeline.cells
    assert len(cells) <= CELLS
    assert cells[0].first == 0
    assert [cell.first for cell in cells[1:]] == [cell.last + 1 for cell in cells[:-1]]
    assert cells[-1].last == shown.report.counts.rollouts - 1
    (differing,) = (cell for cell in cells if cell.first <= 750 <= cell.last)
    assert differing.differing >= 1
    assert len(shown.timeline.rows) == 5
    assert len(page_html(shown)) < 200_000


def test_memory_does_not_grow_with_the_run() -> None:
    kept = []
    for updates in (3000, 9000):
        events = scripted_run(make_plan(rows=400, iterations=2, max_steps=updates))
        judge, watcher = Judge(), TimelineWatcher()
        found = [(event, judge.observe(event)) for event in events]
        tracemalloc.start()
        for event, findings in found:
            watcher.watch(0, event, judge, findings)
        kept.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        shown = watcher.timeline(rank=0, ranks=1, problem=None)
        assert shown is not None
        assert len(shown.cells) > CELLS / 2
    assert kept[1] < 1.2 * kept[0]


@pytest.mark.parametrize("lost", [None, 5, 150, 298])
def test_a_rollout_with_many_updates_shows_its_ends_and_the_difference(tmp_path: Path, lost: int | None) -> None:
    events = scripted_run(make_plan(iterations=300, max_steps=300))
    shown = page(tmp_path, events if lost is None else without(events, Update, lost))
    row = shown.timeline.rows[0]
    assert row.stretches_in_all >= 300
    assert len(row.stretches) <= FIRST + 3 * LAST + 2
    numbers = [stretch.number for stretch in row.stretches]
    assert numbers == sorted(set(numbers))
    marked = [stretch.number for stretch in row.stretches if any(moment.expected for moment in stretch.observed)]
    assert marked == ([] if lost is None else [lost + 1])
    assert "more …" in read(shown).text


def test_many_equal_micro_batches_become_one_box(tmp_path: Path) -> None:
    shown = page(tmp_path, scripted_run(make_plan(accumulation=64, max_steps=3, rows=640)))
    stretch = shown.timeline.rows[0].stretches[1]
    assert [(moment.kind, moment.times) for moment in stretch.observed] == [("microbatch", 64), ("update", 1)]
    assert "0 x 64" in pictures.observed_stretch(stretch.observed, ())


def test_micro_batches_of_any_size_become_one_box(tmp_path: Path) -> None:
    schedule = phase_plan(samples=24, minibatches=(24,), microbatch=None)
    write_records(tmp_path, scripted_phases(PhaseCase(schedule=schedule)))
    rows = recorded_page(tmp_path).timeline.rows
    stretch = next(row for row in rows if row.number == 0).stretches[1]
    assert [moment.kind for moment in stretch.observed] == ["microbatch", "update"]
    assert stretch.observed[0].times > 1
    assert stretch.observed[0].samples is None


# The page


def test_a_page_needs_no_network_and_no_script(tmp_path: Path) -> None:
    reader = read(page(tmp_path, without(scripted_run(PLAN), Update, 10)))
    tags = {tag for tag, _ in reader.tags}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    for tag, attributes in reader.tags:
        assert not any(name.startswith("on") for name in attributes), tag
        assert all(target.startswith("#") for name, target in attributes.items() if name in ("href", "src") and target)
    text = page_html(page(tmp_path / "again", scripted_run(PLAN)))
    assert not re.search(r"url\(|@import|https?://", text)


def test_every_link_leads_somewhere_and_every_name_is_there_once(tmp_path: Path) -> None:
    reader = read(page(tmp_path, without(scripted_run(PLAN), Update, 10)))
    names = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(names) == len(set(names))
    targets = [target for attributes in reader.named("a") if (target := attributes["href"])]
    assert {target[1:] for target in targets} <= set(names)
    assert {"#findings", "#timeline", "#finding-0", "#rule-RLS204"} <= set(targets)
    labels = [attributes["aria-labelledby"] for _, attributes in reader.tags if "aria-labelledby" in attributes]
    assert set(labels) <= set(names)


def test_pictures_say_what_they_show(tmp_path: Path) -> None:
    reader = read(page(tmp_path, without(scripted_run(PLAN), Update, 10)))
    shown = reader.named("svg")
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in shown)
    words = [attributes["aria-label"] or "" for attributes in shown]
    assert any("(expected an update)" in text for text in words)
    assert any(text.startswith("Updates on each of 20 rollouts") for text in words)


def test_the_page_says_the_verdict_first_and_then_why(tmp_path: Path) -> None:
    text = page_html(page(tmp_path, without(scripted_run(PLAN), Update, 10)))
    assert re.findall("<h2[^>]*>([^<]*)<", text) == [
        "Plan and counts",
        "Timeline",
        "Log ratio by lag",
        "Weights of the sampler against the trainer",
        "Findings",
        "Not evaluated",
        "What people notice",
        "Settings",
        "Processes that recorded",
    ]
    first = ("<h1><strong>FAIL", "Update missing: expected an update after 2 micro-batches", "<h2")
    assert [text.index(words) for words in first] == sorted(text.index(words) for words in first)


def test_every_rule_stands_there_with_what_became_of_it(tmp_path: Path) -> None:
    shown = page(tmp_path, without(scripted_run(PLAN), Update, 10))
    text = " ".join(read(shown).text.split())
    for rule in shown.report.rules:
        assert f"{rule.code} {rule.title} {rule.verdict.replace('_', ' ').lower()}" in text


def hostile_run() -> list[AnyEvent]:
    schedule = msgspec.structs.replace(PLAN, settings=HOSTILE, framework="<b>TRL</b>", step_means="</style>")
    first, *rest = scripted_run(schedule)
    assert isinstance(first, RunStarted)
    return [msgspec.structs.replace(first, host="<i>host</i>", versions={"<u>": "</u>\u202e"}), *rest]


def test_hostile_text_is_text(tmp_path: Path) -> None:
    events = [msgspec.structs.replace(e) for e in hostile_run()]
    schedule = events[0].schedule  # type: ignore[union-attr]
    lone = msgspec.structs.replace(schedule, settings={k: v.replace("\ud800", "") for k, v in HOSTILE.items()})
    events[0] = msgspec.structs.replace(events[0], schedule=lone)
    shown = page(tmp_path, events)
    reader = read(shown)
    tags = {tag for tag, _ in reader.tags}
    assert not tags & {"script", "img", "b", "i", "u"}
    assert len(reader.named("style")) == 1
    for text in (
        "<script>alert(1)</script>",
        "</style><img src=x onerror=alert(2)>",
        'quote" onload="alert(3)',
        "{{ 7 * 7 }}",
    ):
        assert text in reader.text
    assert "right\\u202eto left" in reader.text
    assert "bell\\u0007 and \\u2066isolate" in reader.text
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x08]", page_html(shown))


def test_text_that_utf8_cannot_hold_is_written(tmp_path: Path) -> None:
    shown = page(tmp_path, scripted_run(PLAN))
    lone = msgspec.structs.replace(shown, settings={"lone": HOSTILE["right\u202eto left"]})
    assert "lone \\ud800" in page_html(lone)
    page_html(lone).encode()


# Runs with little to show


def test_a_run_without_a_plan_shows_what_was_seen(tmp_path: Path) -> None:
    shown = page(tmp_path, [started(None), *scripted_run(PLAN)[1:]])
    assert (shown.verdict, shown.timeline.uncompared) == ("NOT EVALUATED", 20)
    assert len(shown.timeline.cells) == 20
    text = read(shown).text
    assert "the order of events was not compared with a plan" in text
    assert "The configuration could not be read." in text


def test_a_run_that_was_killed_says_so(tmp_path: Path) -> None:
    events = scripted_run(PLAN)
    shown = page(tmp_path, events[:40])
    assert "training did not come to its end" in read(shown).text
    assert not any(row.cut_short or row.differs for row in shown.timeline.rows)


def test_a_run_of_nothing_but_its_beginning(tmp_path: Path) -> None:
    shown = page(tmp_path, [started(PLAN)])
    assert shown.timeline.cells == ()
    assert "No training rollout was recorded." in read(shown).text


@pytest.mark.parametrize("rollout", [0, 7])
def test_what_cannot_be_observed_stands_with_its_reason_and_is_not_called_planned(tmp_path: Path, rollout: int) -> None:
    events = scripted_run(PLAN)
    after = next(i for i, event in enumerate(events) if isinstance(event, Rollout) and event.index == rollout)
    lost = Unobserved(what="order", why="a <loop> of its own")
    shown = page(tmp_path, [*events[: after + 1], lost, *events[after + 1 :]])
    assert [cell.uncompared for cell in shown.timeline.cells] == [0] * rollout + [1] * (20 - rollout)
    assert shown.verdict == "NOT EVALUATED"
    text = " ".join(read(shown).text.split())
    assert "a <loop> of its own" in text
    assert ("not compared with a plan" if not rollout else "13 not compared with the plan") in text
    assert ("order as planned" in text) is bool(rollout)


def test_events_of_a_trainer_come_as_they_were_recorded(tmp_path: Path) -> None:
    events = scripted_run(PLAN)
    page(tmp_path, events)
    found = records(tmp_path / "log")["run"]
    assert list(trainer_events(found, 0)) == events
    assert list(trainer_events(found, 1)) == []


def test_syncs_that_no_plan_has_are_drawn_and_not_accused(tmp_path: Path) -> None:
    events: list[AnyEvent] = []
    for event in scripted_run(PLAN):
        events.append(event)
        if isinstance(event, Update) and event.index % 3 == 2:
            events.append(WeightSync(policy_version=event.version))
    shown = page(tmp_path, events)
    assert shown.timeline.differing == 0
    assert observed(shown.timeline.rows[0])[-1] == "weight_sync"
    assert isinstance(events[-1], RunEnded)
