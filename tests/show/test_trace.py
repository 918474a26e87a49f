"""The Chrome trace of a record: it is valid for Perfetto, and every event is in it."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.judge.replay import report_of
from rlstep_hooks.record.events import MicroBatch, Refresh, Rollout, Update
from rlstep_hooks.record.ledger import FolderLedger, rank_process, records
from rlstep_hooks.show.trace import write_trace
from tests.scripted import make_plan, scripted_run

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
