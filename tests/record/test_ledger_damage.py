"""Records survive killed processes, full disks, read-only folders, and damaged or foreign files."""

from __future__ import annotations

import json
import mmap
import os
import random
import resource
import signal
import struct
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlstep_hooks.cli.report import show
from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.replay import report_of
from rlstep_hooks.record.events import AnyEvent, MicroBatch, RunEnded, Update
from rlstep_hooks.record.ledger import LONGEST_LINE, FolderLedger, MemoryLedger, rank_process, read_lines, records
from rlstep_hooks.record.wire import encode
from rlstep_hooks.session.recorder import Recorder
from rlstep_hooks.show.summary import sentence
from tests.examples import MANY
from tests.scripted import make_plan, scripted_run, started

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rlstep_hooks.judge.report import Report

REUSE = make_plan(iterations=2, max_steps=8)
EVENTS = scripted_run(REUSE)
KILLS = 40
NOBODY = 65_534


def write(folder: Path, events: list[AnyEvent], process: str = "rank0") -> Path:
    ledger = FolderLedger(folder, "run", process)
    ledger.write(*events)
    ledger.close()
    return ledger.path


def readable(path: Path) -> list[AnyEvent]:
    return [event for event, _ in read_lines(path) if event is not None]


def of_two_ranks(rank: int) -> list[AnyEvent]:
    """The run as one of two processes records it."""
    return [started(REUSE, rank=rank, world_size=2), *EVENTS[1:]]


# Processes that end without a word.


def emit_for_ever(folder: Path, emitted: mmap.mmap) -> None:
    """Record updates until somebody ends it, and say after each how many are safe."""
    recorder = Recorder(FolderLedger(folder, "run", "rank0"), Judge())
    recorder.emit(started(REUSE))
    safe = memoryview(emitted).cast("q")  # set in one go; `struct.pack_into` writes zeros first
    number = 1
    while True:
        safe[0] = number
        recorder.emit(
            MicroBatch(index=number, samples=4, policy_version=0), Update(index=number, version=0, microbatches=1)
        )
        number += 2


def killed_after(folder: Path, seconds: float) -> int:
    """Let a process record, kill it after some time; how many events it had recorded."""
    emitted = mmap.mmap(-1, 8)
    child = os.fork()
    if child == 0:
        emit_for_ever(folder, emitted)
    while not struct.unpack_from("q", emitted)[0]:
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return int(struct.unpack_from("q", emitted)[0])


def test_a_killed_process_loses_at_most_what_it_was_writing(tmp_path: Path) -> None:
    moments = random.Random(8)
    for kill in range(KILLS):
        folder = tmp_path / str(kill)
        safe = killed_after(folder, moments.uniform(0.0, 0.02))
        [record] = records(folder)["run"]
        events = list(record.events())
        assert safe <= len(events) <= safe + 2, "the two events of one moment are one write"
        assert [event.index for event in events[1:]] == [1 + at // 2 * 2 for at in range(len(events) - 1)]
        assert len(record.problems()) == record.ends_within_a_line()
        report = report_of(folder)
        assert not report.complete
        assert "before training did" in report.not_evaluated["record"]


def in_child(do: Callable[[], Any]) -> Any:
    """What a function returns in a process of its own, where it may give up rights and room."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            result = json.dumps(do())
        except BaseException as error:  # noqa: BLE001 - the parent says it
            result = json.dumps(repr(error))
        os.write(writing, result.encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        result = json.loads(pipe.read())
    os.waitpid(child, 0)
    return result


@pytest.mark.parametrize("room", [4_000, 4_001, 4_096, 5_555])
def test_a_disk_that_fills_up(tmp_path: Path, room: int) -> None:
    """What fits is kept and can be read; the run is judged to its end."""

    def record() -> dict[str, Any]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        recorder = Recorder(FolderLedger(tmp_path, "run", "rank0"), Judge())
        for event in EVENTS:
            recorder.emit(event)
        report = recorder.judge.report()
        return {"verdict": report.verdict, "updates": report.counts.updates, **report.not_evaluated}

    whole = MemoryLedger()
    Recorder(whole, Judge()).emit(*EVENTS)
    events = list(whole.events)
    live = in_child(record)
    assert (live["verdict"], live["updates"]) == ("PASS", 8)
    assert "recording stopped: OSError" in live["recording"]
    path = tmp_path / "run.rank0.jsonl"
    kept = readable(path)
    assert kept == events[: len(kept)]
    assert path.stat().st_size == room
    whole_lines = sum(map(len, map(encode, kept)))
    assert room < whole_lines + len(encode(events[len(kept)]))
    report = report_of(tmp_path)
    assert not report.complete
    assert ("ends within its last line" in report.not_evaluated["record"]) == (whole_lines != room)


def test_a_folder_that_takes_nothing_is_an_error_at_once(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)

    def record() -> str:
        if os.getuid() == 0:
            os.setuid(NOBODY)  # nothing is read-only to root
        FolderLedger(tmp_path, "run", "rank0")
        return "written"

    assert "Permission" in in_child(record)
    assert list(tmp_path.iterdir()) == []


def test_a_clock_that_jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of events come from a clock that nobody sets."""
    clock = iter([1e9, 2e9, 0.0, -5.0] * 100)
    monkeypatch.setattr("time.time", lambda: next(clock))
    recorder = Recorder(MemoryLedger(), Judge())
    moments = [recorder.now() for _ in range(50)]
    assert moments == sorted(moments)
    assert 0 <= moments[0] <= moments[-1] < 60


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=len(EVENTS), max_size=len(EVENTS)))
def test_times_decide_nothing(tmp_path_factory: pytest.TempPathFactory, times: list[float]) -> None:
    folder = tmp_path_factory.mktemp("jumping")
    write(folder, [msgspec.structs.replace(event, at=at) for event, at in zip(EVENTS, times, strict=True)])
    report = report_of(folder)
    assert (report.verdict, report.findings, report.counts.updates) == ("PASS", [], 8)


# Damaged and foreign files.


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> tuple[int, bytes]:
    """Bytes that were changed, taken out, put in or cut off: the first place, and what is left."""
    at = draw(st.integers(0, len(whole) - 1))
    end = draw(st.integers(at, min(at + 8, len(whole))))
    put = draw(st.binary(max_size=8) | st.sampled_from([b"\n", b"0", b"9" * 30, b"-", b'"', b"}\n{", b"[" * 2000]))
    rest = draw(st.sampled_from([whole[end:], whole[end:], b""]))
    return at, whole[:at] + put + rest


WHOLE = b"".join(map(encode, EVENTS))


@given(damaged(WHOLE))
@settings(MANY, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_never_changes_what_stands_before_it(tmp_path: Path, damage: tuple[int, bytes]) -> None:
    at, left = damage
    folder = tmp_path / "damaged"
    path = folder / "run.rank0.jsonl"
    folder.mkdir(exist_ok=True)
    path.write_bytes(left)
    before = WHOLE[:at].count(b"\n")
    assert readable(path)[:before] == EVENTS[:before]
    report = report_of(folder)
    assert report.verdict in ("PASS", "FAIL", "NOT_EVALUATED")
    if left.count(b"\n") > len(EVENTS) or not left.endswith(b"\n"):
        assert report.not_evaluated


def report_with(folder: Path, process: str, content: bytes) -> Report:
    """The report of a run of two ranks, one of whose files holds something else."""
    for rank in range(2):
        write(folder, of_two_ranks(rank), rank_process(rank))
    (folder / f"run.{process}.jsonl").write_bytes(content)
    return report_of(folder)


@pytest.mark.parametrize("process", ["rank0", "rank1"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 99,
        b'{"event":"message","role":"user"}\n' * 3,
        b"[" * 100_000 + b"\n",
    ],
    ids=["empty", "blank", "picture", "someone else's lines", "nested"],
)
def test_a_foreign_file_is_named_and_the_rest_is_used(tmp_path: Path, process: str, content: bytes) -> None:
    report = report_with(tmp_path, process, content)
    assert f"run.{process}.jsonl does not say how the run began" in report.not_evaluated["record"]
    assert report.counts.updates == 8
    assert [finding.code for finding in report.findings] == ["RLS901"]
    assert process.removeprefix("rank") in report.findings[0].observed


def with_ticks(events: list[AnyEvent]) -> list[AnyEvent]:
    """The same run with a scheduler that ticks once for each update, and with the time of each event."""
    ticked = [
        msgspec.structs.replace(event, lr_tick=event.index, learning_rate=1e-6) if isinstance(event, Update) else event
        for event in events
    ]
    return [msgspec.structs.replace(event, at=0.25 * number) for number, event in enumerate(ticked, 1)]


def test_a_damaged_line_accuses_nobody(tmp_path: Path) -> None:
    path = write(tmp_path, with_ticks(EVENTS))
    whole = path.read_bytes().splitlines(keepends=True)
    assert report_of(tmp_path).verdict == "PASS"
    for number, line in enumerate(whole[1:-1], 1):
        instead = line[:9] + b"\n"
        path.write_bytes(b"".join([*whole[:number], instead, *whole[number + 1 :]]))
        report = report_of(tmp_path)
        assert (report.verdict, report.findings) == ("NOT_EVALUATED", []), line


@pytest.mark.parametrize("line", [b"{", b'{"event":"rollout","index":0,"samples":8,"policy_version":0}'])
def test_a_record_without_its_beginning_still_has_a_page_and_a_trace(tmp_path: Path, line: bytes) -> None:
    path = write(tmp_path, EVENTS)
    path.write_bytes(line + WHOLE[WHOLE.index(b"\n") :])
    page, trace = tmp_path / "page.html", tmp_path / "trace.json"
    assert show(tmp_path, run=None, form="json", strict=False, trace=trace, html=page) == 2
    assert page.stat().st_size
    assert trace.stat().st_size


def test_another_name_in_the_first_line_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, [msgspec.structs.replace(started(REUSE), run="ruN"), *EVENTS[1:]])
    report = report_of(tmp_path)
    assert (report.run, report.verdict, report.findings) == ("run", "PASS", [])


def test_a_flipped_bit_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, EVENTS)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[7] = lines[7].replace(b'"event"', b'"evenu"')
    path.write_bytes(b"".join(lines))
    [record] = records(tmp_path)["run"]
    assert list(record.events()) == EVENTS[:7] + EVENTS[8:]
    assert record.problems()[0].startswith("run.rank0.jsonl: line 8 is not an event")
    report = report_of(tmp_path)
    assert report.verdict == "NOT_EVALUATED"
    assert "line 8 is not an event" in report.not_evaluated["order"]
    assert report.counts.updates == 8


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("world_size", 0),
        ("samples_per_microbatch", 0),
        ("rollouts_per_cycle", 10**15),
        ("reuse_epochs", 0),
        ("max_age", -9),
    ],
)
def test_a_plan_that_no_run_has_is_not_evaluated(tmp_path: Path, name: str, value: int) -> None:
    """A damaged number of the plan may make it impossible; the events are still counted."""
    impossible = msgspec.structs.replace(REUSE, **{name: value})
    write(tmp_path, [started(impossible), *EVENTS[1:]])
    report = report_of(tmp_path)
    assert report.verdict in ("FAIL", "NOT_EVALUATED")
    assert report.counts.updates == 8


def test_a_file_without_lines_is_read_in_pieces(tmp_path: Path) -> None:
    path = write(tmp_path, EVENTS)
    with path.open("ab") as file:
        file.truncate(path.stat().st_size + 3 * LONGEST_LINE)
    assert readable(path) == EVENTS
    assert report_of(tmp_path).counts.updates == 8


def test_values_of_a_plan_that_are_no_fractions_are_no_event(tmp_path: Path) -> None:
    for fraction in (b'"1/0"', b'"1e999999999"', b"1e300", b"true", b'"%s/3"' % (b"9" * 5000)):
        line = encode(started(REUSE)).replace(b'"updates_per_rollout":2', b'"updates_per_rollout":' + fraction)
        path = tmp_path / "run.rank0.jsonl"
        path.write_bytes(line)
        [(event, problem)] = read_lines(path)
        assert event is None
        assert "is not an event" in problem


def test_the_last_line_may_be_cut_anywhere(tmp_path: Path) -> None:
    assert isinstance(EVENTS[-1], RunEnded)
    last = len(encode(EVENTS[-1]))
    path = tmp_path / "run.rank0.jsonl"
    for cut in range(1, last):
        path.write_bytes(WHOLE[:-cut])
        report = report_of(tmp_path)
        assert (report.verdict, report.complete) == ("NOT_EVALUATED", False)
        assert report.not_evaluated["record"].startswith("run.rank0.jsonl ends within its last line")


def test_a_disk_that_was_full_for_a_while_is_named_as_the_reason(tmp_path: Path) -> None:
    """The end of training finds room again: the record says why it has a gap, and that training came to its end."""

    def record() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, resource.RLIM_INFINITY))
        recorder = Recorder(FolderLedger(tmp_path, "run", "rank0"), Judge())
        for event in EVENTS[:-1]:
            recorder.emit(event)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        recorder.finish(EVENTS[-1])  # type: ignore[arg-type]

    in_child(record)
    report = report_of(tmp_path)
    assert (report.verdict, report.ending, report.findings) == ("NOT_EVALUATED", "completed", [])
    assert "recording stopped: OSError" in report.not_evaluated["recording"]
    assert "did not come to its end" not in sentence(report)


def test_a_record_on_a_full_disk_does_not_say_that_training_broke_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, EVENTS[:20])
    assert "raining did not come to its end, or could not be recorded" in sentence(report_of(tmp_path))
    full = os.statvfs_result((4096, 4096, 9, 0, 0, 9, 9, 9, 0, 255))
    monkeypatch.setattr("os.statvfs", lambda folder: full)
    assert "is full, so that nothing more could be written" in sentence(report_of(tmp_path))
    assert "did not come to its end" not in sentence(report_of(tmp_path))
