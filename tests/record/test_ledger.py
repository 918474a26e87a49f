"""Ledgers: written events are read back, nothing is overwritten, and what cannot be read or written is reported."""

from __future__ import annotations

import errno
import functools
import sys
import zlib
from fractions import Fraction
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.record import ledger as ledger_module
from rlstep_hooks.record.events import (
    AnyEvent,
    Attached,
    Measured,
    MicroBatch,
    MicroBatchValues,
    Rollout,
    RunEnded,
    RunStarted,
    SampleRows,
    UpdateValues,
)
from rlstep_hooks.record.ledger import FolderLedger, MemoryLedger, rank_process, records
from rlstep_hooks.record.wire import decode, encode
from rlstep_hooks.session.recorder import QUICK, Recorder
from tests.scripted import make_plan, scripted_run, started

if TYPE_CHECKING:
    from pathlib import Path
    from types import CodeType, FrameType

REUSE = make_plan(iterations=2, max_steps=8)
PRINTABLE = st.text(st.characters(exclude_categories=("C", "Z")), max_size=8)
"""Other characters are read as their escapes (`test_harmless`)."""
BOUNDED = {
    "world_size": st.integers(1, 1 << 16),
    "local_world_size": st.integers(1, 1 << 16),
    "rank": st.integers(0, 10**12),
    "start_updates": st.integers(0, 10**12),
}
"""What a header may hold."""
PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | PRINTABLE
    | st.floats(allow_nan=False, allow_infinity=False)
)


def strategy(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type, from msgspec's own description of it, so that new events and fields are tested unasked."""
    inspect = msgspec.inspect
    match kind:
        case inspect.IntType():
            return st.integers(-(2**53), 2**53)
        case inspect.FloatType():
            return st.floats(allow_nan=False, allow_infinity=False)
        case inspect.BoolType():
            return st.booleans()
        case inspect.StrType():
            return PRINTABLE
        case inspect.NoneType():
            return st.none()
        case inspect.AnyType():
            return PLAIN
        case inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case inspect.UnionType(types=types):
            return st.one_of(*map(strategy, types))
        case inspect.VarTupleType(item_type=item):
            return st.lists(strategy(item), max_size=2).map(tuple)
        case inspect.TupleType(item_types=items):
            return st.tuples(*map(strategy, items))
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(strategy(key), strategy(value), max_size=2)
        case inspect.CustomType(cls=cls) if cls is Fraction:
            return st.fractions()
        case inspect.StructType(cls=cls, fields=fields):
            if cls.__name__ == "Schedule":
                return st.sampled_from([REUSE, make_plan(rows=None), make_plan(accumulation=8, steps_per_generation=4)])
            bounds = BOUNDED if cls in (RunStarted, Attached) else {}
            return st.builds(cls, **{field.name: bounds.get(field.name, strategy(field.type)) for field in fields})
    raise NotImplementedError(kind)


@functools.cache
def events(kind: type) -> st.SearchStrategy[Any]:
    """Events of one kind with any values."""
    return strategy(msgspec.inspect.type_info(kind))


@pytest.mark.parametrize("kind", get_args(AnyEvent), ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_event_comes_back_as_it_was(kind: type, data: st.DataObject) -> None:
    event = data.draw(events(kind))
    line = encode(event)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line) == event


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_of_a_run_that_diverged_can_be_read_back(value: float) -> None:
    """JSON has no word for them; the line must still be an event."""
    update = UpdateValues(index=7, probed=9, changed=9, with_gradient=9, visible=9, max_change=value)
    microbatch = MicroBatchValues(
        index=14, tokens=8, max_abs_log_ratio=value, mean_abs_log_ratio=value, loss_ratio=value
    )
    event = decode(encode(Measured(updates=(update,), microbatches=(microbatch,))))
    assert isinstance(event, Measured)
    assert [values.index for values in event.updates] == [7]


def test_a_microbatch_takes_at_most_200_bytes() -> None:
    rows = SampleRows(4096, tuple(range(56, 64)))
    event = MicroBatch(
        at=12345.678901,
        index=123456,
        samples=8,
        trained=(rows,),
        policy_version=12345,
        sampled_version=12344,
        old_version=12344,
    )
    assert len(encode(event)) <= 200


def test_a_folder_keeps_what_was_written(tmp_path: Path) -> None:
    events = scripted_run(REUSE)
    ledger = FolderLedger(tmp_path / "new" / "folder", "run", "rank0")
    for event in events:
        ledger.write(event)
    ledger.close()
    ledger.close()
    [record] = records(tmp_path / "new" / "folder")["run"]
    assert list(record.events()) == events
    assert record.problems() == []


def test_an_existing_file_is_never_opened(tmp_path: Path) -> None:
    path = tmp_path / "run.rank0.jsonl"
    path.write_text("precious\n")
    with pytest.raises(FileExistsError):
        FolderLedger(tmp_path, "run", "rank0")
    assert path.read_text() == "precious\n"


def test_each_event_is_on_disk_before_the_next(tmp_path: Path) -> None:
    ledger = FolderLedger(tmp_path, "run", "rank0")
    for number, event in enumerate(scripted_run(REUSE)[:5], 1):
        ledger.write(event)
        assert len(ledger.path.read_bytes().splitlines()) == number
    ledger.close()


class InterruptAt:
    """Raises what Ctrl-C raises before a line of a function; a real signal is answered there too, also right after a write."""

    def __init__(self, code: CodeType, line: int) -> None:
        self.code = code
        self.line = line
        self.raised = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code is not self.code:
            return None
        if event == "line" and frame.f_lineno == self.line and not self.raised:
            self.raised = True
            raise KeyboardInterrupt
        return self


APPENDING = sorted({line for _, _, line in FolderLedger.append.__code__.co_lines() if line})[1:]


@pytest.mark.parametrize("line", APPENDING, ids=[f"line {number}" for number in range(len(APPENDING))])
def test_an_interrupt_within_a_write_leaves_the_checksum_of_what_is_written(line: int, tmp_path: Path) -> None:
    ledger = FolderLedger(tmp_path, "run", "rank0")
    first, second, third = scripted_run(REUSE)[:3]
    ledger.write(first)
    interrupt, before = InterruptAt(FolderLedger.append.__code__, line), sys.gettrace()
    sys.settrace(interrupt)
    try:
        ledger.write(second)
    except KeyboardInterrupt:
        assert interrupt.raised
    finally:
        sys.settrace(before)
    assert ledger.checksum == zlib.crc32(ledger.path.read_bytes())
    ledger.write(third)
    assert ledger.checksum == zlib.crc32(ledger.path.read_bytes())
    [record] = records(tmp_path)["run"]
    assert list(record.events()) in ([first, second, third], [first, third])


def test_a_line_cut_short_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    events = scripted_run(REUSE)[:6]
    path = tmp_path / "run.rank0.jsonl"
    path.write_bytes(b"".join(map(encode, events))[:-10])
    [record] = records(tmp_path)["run"]
    assert list(record.events()) == events[:-1]
    [problem] = record.problems()
    assert "line 6" in problem
    assert path.name in problem


@pytest.mark.parametrize(
    "garbage",
    [
        b"garbage\n",
        b"\n",
        b"\xff\xfe\x00\n",
        b'{"event":"nonsense"}\n',
        b'{"event":"rollout"}\n',
        b'["rollout"]\n',
        b"null\n",
    ],
)
def test_a_line_that_is_no_event_is_named_and_skipped(tmp_path: Path, garbage: bytes) -> None:
    events = scripted_run(REUSE)[:4]
    lines = [encode(event) for event in events]
    (tmp_path / "run.rank0.jsonl").write_bytes(b"".join([*lines[:2], garbage, *lines[2:]]))
    [record] = records(tmp_path)["run"]
    assert list(record.events()) == events
    [problem] = record.problems()
    assert "line 3" in problem


def test_files_of_others_are_ignored_and_foreign_content_is_named(tmp_path: Path) -> None:
    for name in ("notes.txt", "metrics.jsonl", "run.rank.jsonl", "run.rankA.jsonl", "run.rank0.jsonl.bak"):
        (tmp_path / name).write_text("{}\n")
    assert records(tmp_path) == {}
    (tmp_path / "other.rank0.jsonl").write_text('{"loss": 1.0}\n{"loss": 0.5}\n')
    [record] = records(tmp_path)["other"]
    assert list(record.events()) == []
    assert len(record.problems()) == 2


def test_a_folder_that_is_not_there_holds_no_records(tmp_path: Path) -> None:
    assert records(tmp_path / "nowhere") == {}


def test_records_are_ordered_by_start_and_rank(tmp_path: Path) -> None:
    first = started(REUSE)
    for run, begun, ranks in (("late", 30.0, [0]), ("early", 10.0, [10, 2, 0]), ("also-late", 30.0, [0])):
        for rank in ranks:
            ledger = FolderLedger(tmp_path, run, rank_process(rank))
            ledger.write(msgspec.structs.replace(first, run=run, rank=rank, started=begun))
            ledger.close()
    assert [(run, [record.rank for record in found]) for run, found in records(tmp_path).items()] == [
        ("early", [0, 2, 10]),
        ("also-late", [0]),
        ("late", [0]),
    ]


def test_memory_keeps_the_latest_events_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "MEMORY_EVENTS", 3)
    events = scripted_run(REUSE)
    ledger = MemoryLedger()
    for event in events:
        ledger.write(event)
    ledger.close()
    assert list(ledger.events) == events[-3:]


class FullDisk:
    """A ledger whose disk is full after some events."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.tried = 0

    def write(self, event: AnyEvent) -> None:
        self.tried += 1
        if self.tried > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")

    def close(self) -> None:
        raise AssertionError("nobody closes it here")


def record(recorder: Recorder, events: list[AnyEvent]) -> None:
    for event in events:
        recorder.emit(event)


@pytest.mark.parametrize("room", [0, 1, 20])
def test_a_full_disk_ends_the_recording_and_not_the_judging(room: int) -> None:
    disk = FullDisk(room)
    recorder = Recorder(disk, Judge())
    record(recorder, scripted_run(REUSE))
    report = recorder.judge.report()
    assert disk.tried == room + 1
    assert "No space left" in report.not_evaluated["recording"]
    assert (report.verdict, report.counts.updates, report.complete) == ("PASS", 8, True)


def test_a_partly_written_line_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = FolderLedger(tmp_path, "run", "rank0")
    monkeypatch.setattr("os.write", lambda file, line: len(line) - 1)
    with pytest.raises(OSError, match="part of a line"):
        ledger.write(started(REUSE))
    monkeypatch.undo()
    ledger.close()


class Broken(Rule):
    code, title = "RLS000", "raises"

    def rollout(self, event: Rollout) -> None:
        raise ZeroDivisionError("a rule's own fault")


class BrokenFromTheStart(Broken):
    def __init__(self, *args: Any) -> None:
        raise ZeroDivisionError("a rule's own fault")


@pytest.mark.parametrize("rule", [Broken, BrokenFromTheStart])
def test_a_rule_that_raises_is_not_evaluated_and_ends_nothing(
    rule: type[Rule], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlstep_hooks.judge.judge.RULES", (rule,))
    recorder = Recorder(MemoryLedger(), Judge())
    record(recorder, scripted_run(REUSE))
    report = recorder.judge.report()
    assert report.verdict == "NOT_EVALUATED"
    assert "a rule's own fault" in report.not_evaluated["order"]
    assert report.counts.updates == 8


class Grumpy:
    """A listener that fails at its third event."""

    def __init__(self) -> None:
        self.heard_events = 0

    def heard(self, event: AnyEvent, judge: object) -> None:
        self.heard_events += 1
        if self.heard_events == 3:
            raise ValueError("no terminal")


def test_a_listener_that_raises_is_let_go() -> None:
    grumpy = Grumpy()
    recorder = Recorder(MemoryLedger(), Judge(), (grumpy,))
    record(recorder, scripted_run(REUSE))
    assert "no terminal" in recorder.judge.report().not_evaluated["recording"]
    assert grumpy.heard_events == 3
    assert recorder.judge.report().verdict == "PASS"


def test_findings_are_handed_out_once() -> None:
    recorder = Recorder(MemoryLedger(), Judge())
    events = scripted_run(REUSE)
    record(recorder, [e for e in events if not (isinstance(e, Rollout) and e.index == 1)])
    assert {finding.code for finding in recorder.take_findings()} >= {"RLS202"}
    assert recorder.take_findings() == []


def test_the_digest_follows_the_structure_and_not_the_time() -> None:
    digests = []
    for change in ({}, {"at": 3.0}, {"trained": None}, {"samples": 3}):
        recorder = Recorder(MemoryLedger(), Judge())
        record(
            recorder,
            [msgspec.structs.replace(e, **change) if isinstance(e, MicroBatch) else e for e in scripted_run(REUSE)],
        )
        digests.append(recorder.digest)
    assert digests[0] == digests[1] == digests[2] != digests[3]


@pytest.mark.parametrize(("world_size", "carried"), [(1, False), (2, True)])
def test_rollouts_carry_the_digest_where_there_are_ranks_to_compare(world_size: int, carried: bool) -> None:
    ledger = MemoryLedger()
    events = scripted_run(REUSE)
    record(Recorder(ledger, Judge()), [started(REUSE, world_size=world_size), *events[1:]])
    digests = [event.digest for event in ledger.events if isinstance(event, Rollout)]
    assert [digest != 0 for digest in digests] == [carried] * len(digests)


class Writes(MemoryLedger):
    """Counts the writes, and keeps what each wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.moments: list[tuple[AnyEvent, ...]] = []

    def write(self, *events: AnyEvent) -> None:
        super().write(*events)
        self.moments.append(events)


def test_an_event_that_waits_for_the_next_is_written_with_it_and_counted_before() -> None:
    ledger = Writes()
    recorder = Recorder(ledger, Judge())
    first, *others = scripted_run(REUSE, measured=False)
    recorder.emit(first)
    for event in others:
        (recorder.emit_with_next if isinstance(event, MicroBatch) else recorder.emit)(event)
    assert [type(event) for event in ledger.events] == [type(event) for event in [first, *others]]
    assert not [moment for moment in ledger.moments if isinstance(moment[-1], MicroBatch)], "none is written alone"
    assert recorder.judge.report().verdict == "PASS"


def test_events_that_follow_each_other_quickly_are_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 100.0
    monkeypatch.setattr("rlstep_hooks.session.recorder.time.perf_counter", lambda: clock)
    ledger = Writes()
    recorder = Recorder(ledger, Judge())
    first, *others = scripted_run(REUSE, measured=False)
    recorder.emit(first)
    for event in others[:3]:
        recorder.emit_soon(event)
    assert list(ledger.events) == [first], "nothing long has come since the last write"
    clock += QUICK
    recorder.emit_soon(others[3])
    recorder.emit_soon(others[4])
    assert ledger.moments[1:] == [tuple(others[:4])]
    recorder.write()
    assert ledger.moments[2:] == [(others[4],)]
    record(recorder, others[5:])
    assert list(ledger.events)[:-1] == [first, *others[:-1]], "the last has a checksum besides"
    assert recorder.judge.report().verdict == "PASS"


def test_an_event_whose_next_never_comes_is_written_when_somebody_asks() -> None:
    ledger = Writes()
    recorder = Recorder(ledger, Judge())
    events = scripted_run(REUSE, measured=False)
    index = next(i for i, event in enumerate(events) if isinstance(event, MicroBatch))
    record(recorder, events[:index])
    recorder.emit_with_next(events[index])
    assert len(ledger.events) == index
    recorder.finish(RunEnded(status="raised", updates=0, error="OutOfMemoryError"))
    assert ledger.events[index] == events[index]
    assert recorder.judge.counts.microbatches == 1
