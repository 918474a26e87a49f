"""Damage to a record accuses nobody: after it, no rule finds what the whole record does not show, and no damaged record passes."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

import msgspec
import pytest

from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.replay import report_of
from rlstep_hooks.judge.rules import RULES
from rlstep_hooks.record.events import RunEnded
from rlstep_hooks.record.ledger import FolderLedger, rank_process
from rlstep_hooks.session.recorder import Recorder
from tests.examples import THOROUGH
from tests.judge import rule_examples
from tests.scripted import make_plan, scripted_run, started

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.record.events import AnyEvent

Lines = list[bytes]


def recorded(folder: Path, events: list[AnyEvent], process: str = "rank0") -> Path:
    """The record that a process writes of these events: each with its time, the last with the checksum of all."""
    recorder = Recorder(FolderLedger(folder, "run", process), Judge())
    timed = [msgspec.structs.replace(event, at=0.25 * number) for number, event in enumerate(events, 1)]
    whole = isinstance(timed[-1], RunEnded)
    for event in timed[:-1] if whole else timed:
        recorder.emit(event)
    if whole:
        recorder.finish(timed[-1])  # type: ignore[arg-type]
    else:
        recorder.ledger.close()
    return folder / f"run.{process}.jsonl"


def garbled(lines: Lines, number: int) -> Lines:
    return [*lines[:number], lines[number][:9] + b"\n", *lines[number + 1 :]]


def cut(lines: Lines, number: int) -> Lines:
    return [*lines[:number], *lines[number + 1 :]]


def repeated(lines: Lines, number: int) -> Lines:
    return [*lines[:number], lines[number], *lines[number:]]


def moved(lines: Lines, number: int) -> Lines:
    return [*lines[:number], lines[number + 1], lines[number], *lines[number + 2 :]]


DAMAGES: tuple[Callable[[Lines, int], Lines], ...] = (garbled, cut, repeated, moved)


def problems(report: Report) -> set[str]:
    """The rules that accuse the run."""
    return {finding.code for finding in report.findings if finding.severity != "info"}


@pytest.mark.parametrize("damage", DAMAGES)
def test_one_damaged_line_of_a_healthy_run_accuses_nobody_and_does_not_pass(
    tmp_path: Path, damage: Callable[[Lines, int], Lines]
) -> None:
    path = recorded(tmp_path, scripted_run(make_plan(iterations=2, max_steps=8)))
    whole = path.read_bytes().splitlines(keepends=True)
    assert report_of(tmp_path).verdict == "PASS"
    for number in range(1, len(whole) - 2):
        lines = damage(whole, number)
        path.write_bytes(b"".join(lines))
        report = report_of(tmp_path)
        assert problems(report) == set(), whole[number]
        if lines != whole:
            assert (report.verdict, report.not_evaluated["order"][:14]) == ("NOT_EVALUATED", "run.rank0.json"), number


@pytest.mark.parametrize("doubled", ["line by line", "as a whole"])
def test_a_record_that_stands_twice_neither_passes_nor_accuses(tmp_path: Path, doubled: str) -> None:
    path = recorded(tmp_path, scripted_run(make_plan(iterations=2, max_steps=8)))
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(whole + whole if doubled == "as a whole" else b"".join(line + line for line in lines))
    report = report_of(tmp_path)
    assert (report.verdict, problems(report)) == ("NOT_EVALUATED", set())
    expected = "stands after the end of the record" if doubled == "as a whole" else "begins the run again"
    assert expected in report.not_evaluated["order"]
    assert report.counts.updates == 8


def events_of(code: str) -> list[AnyEvent]:
    """The run in which a rule finds its example; empty if that is a plan, or has several processes."""
    seen: list[list[AnyEvent]] = []
    with mock.patch.object(rule_examples, "judged", lambda events: seen.append(events) or []):
        rule_examples.EXAMPLES[code]()
    return seen[0] if seen else []


EXAMPLES = {rule.code: events for rule in RULES if (events := events_of(rule.code))}


def test_nearly_every_rule_of_runs_has_such_a_run() -> None:
    of_runs = {rule.code for rule in RULES if rule.seen_in == "run"}
    assert of_runs - set(EXAMPLES) == {
        "RLS212",
        "RLS410",
        "RLS419",
        "RLS523",
        "RLS811",
        "RLS812",
        "RLS820",
        "RLS901",
        "RLS902",
    }, "of several processes"


@pytest.mark.parametrize(("damage", "step"), [(garbled, 1), (cut, 3)])
@pytest.mark.parametrize("code", EXAMPLES)
def test_a_damaged_line_adds_no_rule_to_those_that_found_something(
    tmp_path: Path, code: str, damage: Callable[[Lines, int], Lines], step: int
) -> None:
    path = recorded(tmp_path, EXAMPLES[code])
    whole = path.read_bytes().splitlines(keepends=True)
    known = problems(report_of(tmp_path))
    if not THOROUGH:
        step = max(step, len(whole) // 3)
    for number in range(1, len(whole) - 2, step):
        path.write_bytes(b"".join(damage(whole, number)))
        assert problems(report_of(tmp_path)) <= known, whole[number]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("number", [5, 12, -2])
def test_a_damaged_line_of_one_rank_is_no_disagreement(tmp_path: Path, rank: int, number: int) -> None:
    plan = make_plan(iterations=2, max_steps=8)
    for of in range(2):
        events = [started(plan, rank=of, world_size=2), *scripted_run(plan)[1:]]
        recorded(tmp_path, events, rank_process(of))
    path = tmp_path / f"run.rank{rank}.jsonl"
    path.write_bytes(b"".join(garbled(path.read_bytes().splitlines(keepends=True), number)))
    report = report_of(tmp_path)
    assert problems(report) == set()
    assert report.verdict == ("PASS" if rank else "NOT_EVALUATED")
