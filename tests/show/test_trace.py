"""The Chrome trace of a record: it is valid for Perfetto, and every event is in it."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.replay import report_of
from rlstep_hooks.record.events import Judged, MicroBatch, Refresh, Rollout, RunStarted, Update
from rlstep_hooks.record.ledger import FolderLedger, rank_process, records
from rlstep_hooks.show.trace import trace_events, write_trace
from tests.scripted import LoaderPosition, make_plan, scripted_run
from tests.scripted_phases import PhaseCase, phase_plan, scripted_phases, write_records

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.record.events import AnyEvent

PLAN = make_plan(iterations=2, max_steps=8)


def traced(folder: Path, events: list[AnyEvent]) -> list[dict[str, Any]]:
    """The trace of one process's events, a tenth of a second apart."""
    ledger = FolderLedger(folder / "log", "run", rank_process(0))
    for number, event in enumerate(events):
        ledger.write(msgspec.structs.replace(event, at=number / 10))
    ledger.close()
    path = folder / "trace.json"
    written = write_trace(records(folder / "log")["run"], report_of(folder / "log"), path)
    found: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    assert len(found) == written
    return found


def test_every_event_of_training_is_a_slice(tmp_path: Path) -> None:
    events = scripted_run(PLAN)
    slices = [event for event in traced(tmp_path, events) if event["ph"] == "X"]
    titles = Counter(event["name"].split()[0] for event in slices)
    for kind, word in ((Rollout, "rollout"), (Refresh, "old"), (MicroBatch, "micro-batch"), (Update, "update")):
        assert titles[word] == sum(isinstance(event, kind) for event in events)
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in slices)
    ends = [event["ts"] + event["dur"] for event in slices]
    assert ends == sorted(ends)


def test_micro_batches_carry_their_lag(tmp_path: Path) -> None:
    slices = [event for event in traced(tmp_path, scripted_run(PLAN)) if event["name"].startswith("micro-batch")]
    assert {event["args"]["lag"] for event in slices} == {0, 1}


def test_an_arrow_leads_from_the_rollout_to_each_update(tmp_path: Path) -> None:
    events = traced(tmp_path, scripted_run(PLAN))
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(ends) == 8
    for name, end in ends.items():
        start = starts[name]
        assert start["ts"] < end["ts"]
        for point in (start, end):
            within = [
                e
                for e in events
                if e["ph"] == "X" and e["tid"] == point["tid"] and e["ts"] <= point["ts"] <= e["ts"] + e["dur"]
            ]
            assert len(within) == 1


def test_a_finding_stands_at_its_rollout(tmp_path: Path) -> None:
    events = [e for e in scripted_run(PLAN) if not (isinstance(e, Update) and e.index == 4)]
    marks = [event for event in traced(tmp_path, events) if event["ph"] == "i"]
    rollouts = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e["name"] == "rollout 2"]
    first = next(mark for mark in marks if "RLS204" in mark["name"])
    assert first["ts"] == rollouts[0]["ts"] + rollouts[0]["dur"]
    assert first["args"]["expected"]


def test_a_process_has_a_name(tmp_path: Path) -> None:
    names = [e["args"]["name"] for e in traced(tmp_path, scripted_run(PLAN)) if e["name"] == "process_name"]
    assert names == ["rank0"]


def marks_at(events: list[dict[str, Any]], code: str) -> list[tuple[int, float]]:
    """Where the marks of a rule stand: process and time."""
    return [(e["pid"], e["ts"]) for e in events if e["ph"] == "i" and code in e["name"]]


def ends_of(events: list[dict[str, Any]], title: str) -> dict[int, float]:
    """When the slices with a title end, by process."""
    return {e["pid"]: e["ts"] + e["dur"] for e in events if e["ph"] == "X" and e["name"] == title}


def test_a_finding_of_a_resumed_run_stands_at_its_rollout(tmp_path: Path) -> None:
    plan = make_plan(iterations=2, max_steps=40, rows=400)
    start = LoaderPosition(updates=20, version=20, epoch_microbatches=40)
    events = [e for e in scripted_run(plan, start=start) if not (isinstance(e, Update) and e.index == 26)]
    trace = traced(tmp_path, events)
    (first,) = (f for f in report_of(tmp_path / "log").findings if f.code == "RLS204" and f.where.update == 26)
    assert first.where.rollout == 13
    # The fourth rollout of this run is the 14th of training.
    assert marks_at(trace, "RLS204") == [(0, pytest.approx(ends_of(trace, "rollout 3")[0]))]


def test_a_finding_of_one_rank_stands_in_its_track_at_its_own_rollout(tmp_path: Path) -> None:
    plan = make_plan(iterations=2, max_steps=8, world_size=2)
    for rank, seconds in ((0, 0.1), (1, 0.25)):
        events = [
            msgspec.structs.replace(event, at=number * seconds)
            for number, event in enumerate(scripted_run(plan))
            if not (rank and isinstance(event, Update) and event.index == 4)
        ]
        first, *rest = events
        assert isinstance(first, RunStarted)
        judge = Judge()
        first = msgspec.structs.replace(first, rank=rank, world_size=2, local_world_size=2)
        for event in (first, *rest):
            judge.observe(event)
        report = judge.report()
        ledger = FolderLedger(tmp_path, "run", rank_process(rank))
        ledger.write(first, *rest, Judged(verdict=report.verdict, findings=tuple(report.findings)))
        ledger.close()
    report = report_of(tmp_path)
    (found,) = (finding for finding in report.findings if finding.code == "RLS204" and finding.where.rank == 1)
    assert found.where.rollout == 2
    trace = list(trace_events(records(tmp_path)["run"], report))
    assert marks_at(trace, "RLS204")[0] == (1, pytest.approx(ends_of(trace, "rollout 2")[1]))
    # Updates of a rank come from its own rollouts.
    starts = {e["id"]: e["pid"] for e in trace if e["ph"] == "s"}
    assert {name: e["pid"] for e in trace if e["ph"] == "f" for name in [e["id"]]} == starts


def test_a_finding_on_a_trainer_stands_at_the_rollout_of_its_controller(tmp_path: Path) -> None:
    script = scripted_phases(PhaseCase(schedule=phase_plan(world_size=2)))
    lost = next(
        i for i, (process, e) in enumerate(script) if process == "rank1" and isinstance(e, Update) and e.index == 3
    )
    timed = [(process, msgspec.structs.replace(e, at=number / 10)) for number, (process, e) in enumerate(script)]
    write_records(tmp_path, [*timed[:lost], *timed[lost + 1 :]])
    report = report_of(tmp_path)
    found = next(finding for finding in report.findings if finding.where.rank == 1)
    trace = list(trace_events(records(tmp_path)["run"], report))
    names = {e["pid"]: e["args"]["name"] for e in trace if e["name"] == "process_name"}
    (made,) = ends_of(trace, f"rollout {found.where.rollout}").values()
    assert [(names[pid], ts) for pid, ts in marks_at(trace, found.code)] == [("rank1", pytest.approx(made))]
    arrows = [e for e in trace if e["ph"] == "s"]
    assert arrows
    assert {names[e["pid"]] for e in arrows} == {"controller"}
