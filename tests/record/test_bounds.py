"""A record cannot make its reader count, wait or remember without end; what real runs write is within the bounds."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from rlstep_hooks.judge.following import FollowedRun
from rlstep_hooks.judge.replay import report_of
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.planning.schedule import Schedule, decode_fraction
from rlstep_hooks.record.bounds import LONGEST_TEXT, BoundError, check_schedule
from rlstep_hooks.record.events import RunEnded
from rlstep_hooks.record.ledger import MOST_DAMAGED, read_lines, record_files
from rlstep_hooks.record.wire import decode, encode
from rlstep_hooks.systems.engine.launches import plan_launch
from tests.fuzz import pool
from tests.fuzz.damage import ODD
from tests.golden import plan_dump
from tests.scripted import make_plan, scripted_run, started

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

EVENTS = scripted_run(make_plan(iterations=2, max_steps=8))
SECONDS = 5.0

HEADERS: dict[str, tuple[tuple[str, ...], Any]] = {
    "processes": (("world_size",), 10**9),
    "no process": (("world_size",), 0),
    "planned processes": (("schedule", "world_size"), 10**9),
    "micro-batches of an update": (("schedule", "microbatches_per_update"), 10**9),
    "passes": (("schedule", "reuse_epochs"), 10**9),
    "no pass": (("schedule", "reuse_epochs"), 0),
    "rollouts of a cycle": (("schedule", "rollouts_per_cycle"), 10**9),
    "parts": (("schedule", "parts_per_rollout"), 10**9),
    "age": (("schedule", "max_age"), 10**9),
    "negative": (("schedule", "samples_per_rollout"), -8),
    "a number of 40 digits": (("pid",), 10**40),
    "where it began": (("facts", "position"), {"updates": 10**40}),
    "where it began, in words": (("facts", "position"), "at 7"),
    "a list for a number": (("facts", "position"), {"cycle": [1]}),
    "deep": (("facts", "deep"), None),
}


def header(place: tuple[str, ...], value: Any) -> bytes:
    """The first line of a record with another value somewhere."""
    line = json.loads(encode(started(make_plan(iterations=2, max_steps=8))))
    holder = line
    for name in place[:-1]:
        holder = holder.setdefault(name, {})
    for _ in range(200 if value is None else 0):
        value = [value]
    holder[place[-1]] = value
    return json.dumps(line).encode() + b"\n"


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_beyond_its_bounds_is_no_event(tmp_path: Path, name: str) -> None:
    path = tmp_path / "run.rank0.jsonl"
    path.write_bytes(header(*HEADERS[name]) + b"".join(encode(event) for event in EVENTS[1:]))
    began = time.process_time()
    report = report_of(tmp_path)
    FollowedRun(tmp_path, "run").look()
    assert time.process_time() - began < SECONDS
    assert report.verdict == "NOT_EVALUATED"
    assert report.findings == []
    assert "line 1 is not an event" in report.not_evaluated["record"]


@pytest.mark.parametrize("case", plan_dump.read(plan_dump.STORED), ids=lambda case: case.system)
def test_the_plan_of_every_stored_launch_is_within_the_bounds(case: plan_dump.Case) -> None:
    with plan_dump.beside(case.launch) as (words, given):
        try:
            schedule = plan_launch(words, Options(**given)).schedule
        except Exception:  # noqa: BLE001 - other tests say what cannot be planned
            return
        if schedule is not None:
            check_schedule(schedule)
            again = msgspec.json.decode(
                json.dumps(json.loads(encode(started(schedule)))["schedule"]),
                type=Schedule,
                dec_hook=lambda kind, value: decode_fraction(value),
            )
            check_schedule(again)


def test_a_long_text_is_cut_and_says_so() -> None:
    read = decode(encode(RunEnded(status="raised", updates=1, error="x" * 1_000_000)))
    assert isinstance(read, RunEnded)
    assert len(read.error) < LONGEST_TEXT + 50
    assert read.error.endswith("(1000000 characters)")


def test_a_checksum_of_64_bits_is_none_of_the_numbers_that_are_too_large() -> None:
    read = decode(encode(RunEnded(status="completed", updates=1, digest=2**64 - 1)))
    assert isinstance(read, RunEnded)
    assert read.digest == 2**64 - 1
    with pytest.raises(BoundError, match="beyond"):
        decode(b'{"event":"run_ended","status":"completed","updates":1' + b"0" * 30 + b"}\n")


@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    """The record itself is read where it is one; a pipe, a device or a hole beside it or in its place is not."""
    path = tmp_path / "run.rank0.jsonl"
    whole = b"".join(map(encode, EVENTS))
    path.write_bytes(whole)
    ODD[kind](path)
    began = time.monotonic()
    if "run" in record_files(tmp_path):
        report = report_of(tmp_path, "run")
        assert report.counts.updates == (0 if kind == "empty" else 8)
    outcome = pool.look(tmp_path, tmp_path, tmp_path / "out", ["report", "why", "live line", "answer of follow"])
    assert outcome == ""
    assert time.monotonic() - began < 60
    if kind in (
        "a pipe",
        "a folder",
        "a socket",
        "a link to itself",
        "a link to a device",
        "a link to a device without end",
    ):
        assert "run" not in record_files(tmp_path)
        with pytest.raises(OSError, match=r"regular|Too many levels|No such device|directory"):
            list(read_lines(path))


def test_a_file_of_damaged_lines_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "run.rank0.jsonl"
    path.write_bytes(b"".join(map(encode, EVENTS[:-1])) + b"{}\n" * (MOST_DAMAGED + 5) + encode(EVENTS[-1]))
    problems = [problem for _, problem in read_lines(path) if problem]
    assert len(problems) == MOST_DAMAGED
    assert "the rest is not read" in problems[-1]
    assert report_of(tmp_path).verdict == "NOT_EVALUATED"


@pytest.mark.parametrize("seeds", [range(10), range(10, 20), range(20, 30), range(30, 40), [3518]], ids=str)
def test_damaged_records_are_read_to_an_answer(tmp_path: Path, seeds: Sequence[int]) -> None:
    """A few of those of `python -m tests.fuzz.pool`, and one that failed there."""
    for seed in seeds:
        outcome = pool.check(seed, tmp_path / "damaged", most=1)
        assert outcome.failure == "", f"{seed}: {outcome.what}"
