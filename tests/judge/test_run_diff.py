"""Recorded runs, compared with each other and with the plan of a launch."""

from __future__ import annotations

import json
import shlex
import tracemalloc
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstep_hooks.cli import main
from rlstep_hooks.judge.replay import NoRecordError
from rlstep_hooks.judge.run_diff.actions import ActionStream, Blindness
from rlstep_hooks.judge.run_diff.recorded import RecordedRun, recorded_run
from rlstep_hooks.judge.run_diff.two_runs import RunDifference, compare_runs
from rlstep_hooks.judge.timeline import LoaderPosition, PhasePosition
from rlstep_hooks.planning.finding import Where
from rlstep_hooks.record.events import (
    AnyEvent,
    ConfigChanged,
    Evaluated,
    Measured,
    MicroBatch,
    MicroBatchValues,
    Refresh,
    Rollout,
    RunEnded,
    RunStarted,
    Unobserved,
    Update,
)
from rlstep_hooks.record.wire import encode
from rlstep_hooks.systems.trl.releases import TrlRelease
from tests.scripted import cases, make_plan, scripted_run
from tests.scripted_phases import PhaseCase, Script, phase_plan, scripted_phases, write_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.scripted import Case

REUSE = make_plan(iterations=2, max_steps=8)
"""Each rollout of 8 samples: 4 micro-batches of 4, 2 updates."""


def record(folder: Path, events: Sequence[AnyEvent], *, run: str = "run", cut: int | None = None) -> RecordedRun:
    """The run that these events are, on disk; `cut` leaves so many bytes of its file."""
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / f"{run}.rank0.jsonl"
    path.write_bytes(b"".join(map(encode, events))[:cut])
    return recorded_run(f"{folder}/{run}")


def compared(folder: Path, a: Sequence[AnyEvent], b: Sequence[AnyEvent]) -> RunDifference:
    return compare_runs(record(folder / "a", a), record(folder / "b", b))


def changed(events: Sequence[AnyEvent], number: int, **fields: Any) -> list[AnyEvent]:
    return [msgspec.structs.replace(e, **fields) if n == number else e for n, e in enumerate(events)]


def number_of(events: Sequence[AnyEvent], kind: type, which: int) -> int:
    """Where the event number `which` of a kind stands."""
    return [number for number, event in enumerate(events) if isinstance(event, kind)][which]


# Two runs


@given(case=cases())
def test_two_runs_of_one_plan_do_not_part(case: Case, tmp_path_factory: pytest.TempPathFactory) -> None:
    events = scripted_run(case.schedule)
    difference = compared(tmp_path_factory.mktemp("same"), events, events)
    assert (difference.outcome, difference.parting, difference.numbers, difference.notes) == ("same", None, (), ())
    assert difference.compared > 0
    assert all(a == b for a, b in difference.counts.values())


CHANGES: dict[str, tuple[Callable[[list[AnyEvent]], list[AnyEvent]], Where, str, str]] = {
    "a rollout too early": (
        lambda e: [*e[: number_of(e, MicroBatch, 5)], e[number_of(e, Rollout, 1)], *e[number_of(e, MicroBatch, 5) :]],
        Where(rollout=1, update=2, microbatch=5, epoch=0),
        "a micro-batch",
        "a rollout",
    ),
    "a micro-batch of other size": (
        lambda e: changed(e, number_of(e, MicroBatch, 6), samples=3),
        Where(rollout=1, update=3, microbatch=6, epoch=0),
        "a micro-batch",
        "a micro-batch",
    ),
    "another lag": (
        lambda e: changed(e, number_of(e, MicroBatch, 6), old_version=3),
        Where(rollout=1, update=3, microbatch=6, epoch=0),
        "a micro-batch",
        "a micro-batch",
    ),
    "a refresh missing": (
        lambda e: [event for n, event in enumerate(e) if n != number_of(e, Refresh, 2)],
        Where(rollout=2, update=4, microbatch=8, epoch=0),
        "old log-probs",
        "a micro-batch",
    ),
    "an update that was skipped": (
        lambda e: changed(e, number_of(e, Update, 3), applied=False),
        Where(rollout=1, update=3, microbatch=8, epoch=0),
        "an update",
        "an update",
    ),
    "stale weights of the sampler": (
        lambda e: changed(e, number_of(e, Rollout, 3), sampler_version=4),
        Where(rollout=3, update=6, microbatch=12, epoch=0),
        "a rollout",
        "a rollout",
    ),
    "a setting changed in mid-run": (
        lambda e: [
            *e[: number_of(e, Rollout, 2)],
            ConfigChanged(name="num_iterations", before=2, after=1, since="train_begin"),
            *e[number_of(e, Rollout, 2) :],
        ],
        Where(rollout=2, update=4, microbatch=8, epoch=0),
        "a rollout",
        "num_iterations changed",
    ),
    "an exception": (
        lambda e: [*e[: number_of(e, Rollout, 2)], RunEnded(status="raised", updates=4, error="OSError: disk")],
        Where(rollout=2, update=4, microbatch=8, epoch=0),
        "a rollout",
        "the end of training",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_runs_part_where_one_of_them_was_changed(name: str, tmp_path: Path) -> None:
    change, where, kind, kind_there = CHANGES[name]
    events = scripted_run(REUSE)
    difference = compared(tmp_path, events, change(list(events)))
    assert difference.outcome == "differ"
    assert difference.parting is not None
    assert (difference.parting.a[0].kind, difference.parting.b[0].kind) == (kind, kind_there)
    assert difference.parting.where == where
    assert not difference.parting.a[0].is_like(difference.parting.b[0])
    assert difference.compared == difference.parting.after


def test_what_differs_between_healthy_runs_is_no_difference(tmp_path: Path) -> None:
    """Which samples a micro-batch has, times, evaluations, and what only one run could see."""
    events = scripted_run(REUSE)
    other: list[AnyEvent] = []
    for event in events:
        if isinstance(event, MicroBatch):
            event = msgspec.structs.replace(event, trained=None, sampled_version=None, at=9.0)
        if isinstance(event, Rollout):
            event = msgspec.structs.replace(event, sampler_version=None, groups_intact=None)
        other.append(event)
        if isinstance(event, Update) and event.index == 3:
            other += [
                Evaluated(batches=2, rollouts=1),
                Rollout(index=99, samples=8, policy_version=4, purpose="evaluation"),
            ]
    difference = compared(tmp_path, events, other)
    assert (difference.outcome, difference.parting) == ("same", None)
    assert difference.counts["evaluations"] == (0, 1)
    unseen = [event for event in events if not isinstance(event, Refresh)]
    unseen.insert(1, Unobserved(what="refresh", why="a liger loss computes them"))
    difference = compared(tmp_path / "unseen", events, unseen)
    assert difference.outcome == "same"
    assert any("refreshes" in note for note in difference.notes)


def test_micro_batches_that_data_decide_are_left_out(tmp_path: Path) -> None:
    started, *rest = scripted_run(msgspec.structs.replace(REUSE, samples_per_microbatch=4))
    assert isinstance(started, RunStarted)
    by_tokens = msgspec.structs.replace(started, schedule=msgspec.structs.replace(REUSE, samples_per_microbatch=None))
    other = [
        msgspec.structs.replace(event, samples=3) if isinstance(event, MicroBatch) else event
        for event in rest
        if not (isinstance(event, MicroBatch) and event.index == 5)
    ]
    assert compared(tmp_path / "fixed", [started, *rest], [started, *other]).outcome == "differ"
    difference = compared(tmp_path / "data", [by_tokens, *rest], [by_tokens, *other])
    assert (difference.outcome, difference.parting) == ("same", None)
    assert any("token counts" in note for note in difference.notes)


def test_runs_of_other_plans_part_and_the_settings_are_named(tmp_path: Path) -> None:
    def with_settings(passes: int) -> list[AnyEvent]:
        plan = make_plan(iterations=passes, max_steps=8)
        return scripted_run(msgspec.structs.replace(plan, settings={"num_iterations": passes, "beta": 0.0}))

    difference = compared(tmp_path, with_settings(2), with_settings(3))
    assert difference.parting is not None
    assert difference.parting.where == Where(rollout=1, update=2, microbatch=4, epoch=0)
    assert (difference.parting.a[0].kind, difference.parting.b[0].kind) == ("a rollout", "a micro-batch")
    assert difference.settings == {"num_iterations": (2, 3)}
    assert {q.quantity: (q.a.value, q.b.value) for q in difference.quantities}["updates_per_rollout"] == (2, 3)
    assert difference.counts["rollouts"] == (4, 3)


# Records that are not whole


@given(share=st.floats(0.0, 1.0))
def test_a_record_that_was_cut_is_compared_as_far_as_it_goes(
    share: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    events = scripted_run(REUSE)
    whole = record(folder / "a", events)
    size = whole.found[0].path.stat().st_size
    first = len(encode(events[0])) + len(encode(events[1]))  # the run's beginning, and something that it did
    cut = record(folder / "b", events, cut=first + int(share * (size - first - 1)))
    for difference in (compare_runs(whole, cut), compare_runs(cut, whole)):
        assert (difference.outcome, difference.parting) == ("same", None)
        (note,) = difference.notes
        assert "record ends before its training did" in note


def test_a_difference_before_the_cut_is_found(tmp_path: Path) -> None:
    events = scripted_run(REUSE)
    spoiled = changed(events, number_of(events, MicroBatch, 2), samples=3)
    cut = record(tmp_path / "b", spoiled, cut=sum(len(encode(e)) for e in spoiled[:-4]))
    difference = compare_runs(record(tmp_path / "a", events), cut)
    assert difference.parting is not None
    assert difference.parting.where.microbatch == 2


def test_what_follows_a_damaged_line_is_not_compared(tmp_path: Path) -> None:
    events = scripted_run(REUSE)
    whole, damaged = record(tmp_path / "a", events), record(tmp_path / "b", events)
    path = damaged.found[0].path
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number_of(events, Rollout, 2)] = b"{}\n"
    path.write_bytes(b"".join(lines))
    difference = compare_runs(whole, recorded_run(str(tmp_path / "b")))
    assert (difference.outcome, difference.parting) == ("unknown", None)
    assert any("B: the order of events cannot be told" in note for note in difference.notes)


def test_nothing_in_common_is_unknown(tmp_path: Path) -> None:
    events = scripted_run(REUSE)
    difference = compared(tmp_path, events, events[:1])
    assert (difference.outcome, difference.compared) == ("unknown", 0)


# Numbers


def test_numbers_part_for_information(tmp_path: Path) -> None:
    events = scripted_run(REUSE)
    rates = [
        msgspec.structs.replace(event, learning_rate=0.005) if isinstance(event, Update) and event.index >= 5 else event
        for event in events
    ]
    difference = compared(tmp_path, events, rates)
    assert difference.outcome == "same"
    (found,) = difference.numbers
    assert (found.name, found.a, found.b, found.where.update) == ("learning rate", 0.01, 0.005, 5)
    ratios: list[AnyEvent] = []
    for event in events:
        if isinstance(event, Measured):
            values = [
                MicroBatchValues(index=v.index, tokens=8, max_abs_log_ratio=(v.max_abs_log_ratio or 0) * 3)
                for v in event.microbatches
            ]
            event = msgspec.structs.replace(event, microbatches=tuple(values))
        ratios.append(event)
    (found,) = compared(tmp_path / "ratios", events, ratios).numbers
    assert (found.name, found.where.microbatch, found.a) == ("max |log ratio|", 2, 0.1)
    assert found.b == pytest.approx(0.3)


# Several trainers, and runs in phases


def test_the_trainer_that_parts_first_is_named(tmp_path: Path) -> None:
    plan = make_plan(iterations=2, max_steps=8, world_size=2)
    for side in ("a", "b"):
        for rank in (0, 1):
            started, *rest = scripted_run(plan)
            assert isinstance(started, RunStarted)
            events = [msgspec.structs.replace(started, rank=rank, world_size=2, local_world_size=2), *rest]
            if side == "b":
                events = changed(events, number_of(events, MicroBatch, 6 if rank == 0 else 3), samples=3)
            (tmp_path / side).mkdir(exist_ok=True)
            (tmp_path / side / f"run.rank{rank}.jsonl").write_bytes(b"".join(map(encode, events)))
    difference = compare_runs(recorded_run(str(tmp_path / "a")), recorded_run(str(tmp_path / "b")))
    assert difference.parting is not None
    assert (difference.parting.where.rank, difference.parting.where.microbatch) == (1, 3)


PHASES = phase_plan(world_size=2, samples=8, minibatches=(4, 4), microbatch=2, rollouts=4, per_epoch=2)


def test_runs_that_one_process_controls_are_compared_as_they_were_composed(tmp_path: Path) -> None:
    script = scripted_phases(PhaseCase(schedule=PHASES))
    write_records(tmp_path / "a", script)
    write_records(tmp_path / "b", script)
    a, b = (recorded_run(str(tmp_path / side)) for side in "ab")
    difference = compare_runs(a, b)
    assert (difference.outcome, difference.notes) == ("same", ())
    assert difference.compared > 50
    spoiled = list(script)
    number = [n for n, (process, e) in enumerate(script) if process == "rank1" and isinstance(e, MicroBatch)][3]
    process, event = script[number]
    spoiled[number] = (process, msgspec.structs.replace(event, samples=9))  # type: ignore[arg-type]
    write_records(tmp_path / "c", spoiled)
    parting = compare_runs(a, recorded_run(str(tmp_path / "c"))).parting
    assert parting is not None
    assert (parting.where.rank, parting.where.microbatch, parting.b[0].facts["samples"]) == (1, 3, 9)
    path = next((tmp_path / "b").glob("*.controller.jsonl"))
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    cut = compare_runs(a, recorded_run(str(tmp_path / "b")))
    assert (cut.outcome, cut.parting) == ("same", None)
    assert "B's record ends before its training did" in cut.notes[0]


@pytest.mark.parametrize(("label", "notes"), [(2, 1), (77, 2)])
def test_a_run_that_begins_with_other_weights_than_the_one_before_had_says_so(
    label: int, notes: int, tmp_path: Path
) -> None:
    """A's sync after version 4 has label 2."""

    def with_weights(script: Script, weights: int) -> Script:
        return [
            (
                process,
                msgspec.structs.replace(e, facts=e.facts | {"weights": weights}) if isinstance(e, RunStarted) else e,
            )
            for process, e in script
        ]

    case, start = PhaseCase(schedule=PHASES), PhasePosition(rollouts=2, updates=4, version=4)
    write_records(tmp_path / "a", with_weights(scripted_phases(case), 500))
    write_records(tmp_path / "b", with_weights(scripted_phases(case, start), label))
    found = compare_runs(*(recorded_run(str(tmp_path / side)) for side in "ab")).notes
    begun = [note for note in found if "began at" in note]
    assert len(begun) == notes
    assert notes == 1 or begun[1] == "B began at version 4 with other weights than A had at that version"


# Streaming


def test_reading_stays_in_constant_memory() -> None:
    def endless() -> Iterator[AnyEvent]:
        events = scripted_run(REUSE)
        yield events[0]
        for number in range(40_000):
            yield MicroBatch(index=number, samples=4, policy_version=0)
            yield Measured(microbatches=(MicroBatchValues(index=number, tokens=8),))

    stream = iter(ActionStream(endless(), Blindness()))
    for _ in range(1000):
        next(stream)
    tracemalloc.start()
    try:
        for _ in stream:
            pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200_000


# The command


LAUNCH = (
    "trl grpo --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --num_generations 4 --num_iterations {passes}"
    " --max_steps 8"
)


def rlstep(command: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command))
    shown = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, shown.out, shown.err


def test_the_command_shows_where_two_runs_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    events = scripted_run(REUSE)
    record(tmp_path / "log", events, run="healthy")
    record(tmp_path / "log", changed(events, number_of(events, MicroBatch, 6), old_version=3), run="stuck")
    a, b = tmp_path / "log" / "healthy", tmp_path / "log" / "stuck"
    status, out, err = rlstep(f"diff {a} {b}", capsys)
    assert (status, err) == (1, "")
    for line in (
        "they part at data epoch 0, rollout 1, update 3, micro-batch 6, after 13 equal events",
        "A  a micro-batch: samples 4, lag 1,",
        "B  a micro-batch: samples 4, lag 0,",
        "then an update: applied yes",
        "micro-batches",
    ):
        assert line in out
    status, out, _ = rlstep(f"diff --json {a} {b}", capsys)
    shown = json.loads(out)
    assert (status, shown["outcome"], shown["where"]["microbatch"]) == (1, "differ", 6)
    assert shown["a"]["run"] == "healthy"
    assert shown["parting"]["b"][0]["facts"]["lag"] == 0
    status, out, _ = rlstep(f"diff {a} {a}", capsys)
    assert (status, "they do not part: 34 equal events" in out) == (0, True)


def test_a_run_against_a_launch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    folder = record(tmp_path / "log", scripted_run(REUSE)).place
    status, out, _ = rlstep(f"diff --rows 36 --version 1.16.0 {folder} -- {LAUNCH.format(passes=2)}", capsys)
    assert status == 0, out
    assert "the run is one of this plan" in out
    status, out, _ = rlstep(f"diff --rows 36 --version 1.16.0 {folder} -- {LAUNCH.format(passes=3)}", capsys)
    assert status == 1
    assert "the run leaves this plan at data epoch 0, rollout 1, update 2" in out
    assert "RLS201" in out
    assert "updates_per_rollout" in out
    command = f"diff --json --rows 36 --version 1.16.0 '{LAUNCH.format(passes=3)}' {folder}"
    status, out, _ = rlstep(command, capsys)
    shown = json.loads(out)
    assert (status, shown["departure"]["code"], shown["run"]["complete"]) == (1, "RLS201", True)
    found = {difference["quantity"]: difference for difference in shown["quantities"]}
    assert (found["reuse_epochs"]["a"]["value"], found["reuse_epochs"]["b"]["value"]) == (2, 3)
    assert {row["name"]: (row["planned"], row["observed"]) for row in shown["counts"]}["rollouts"] == (3, 4)


def test_a_launch_is_completed_by_what_the_run_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release decides formulas, and rows where an epoch ends: 36 rows end within a window of 3 micro-batches."""
    monkeypatch.setenv("COLUMNS", "120")
    plan = make_plan(release=TrlRelease("0.24.0", "4.57.6"), accumulation=8, steps_per_generation=2, epochs=2)
    folder = record(tmp_path / "log", scripted_run(plan)).place
    launch = (
        "trl grpo --per_device_train_batch_size 4 --gradient_accumulation_steps 8 --steps_per_generation 2"
        " --num_generations 4 --num_train_epochs 2"
    )
    status, out, _ = rlstep(f"diff {folder} -- {launch}", capsys)
    assert status == 0, out
    assert "the launch command · TRL 0.24.0 · version and rows as in the run" in out
    status, out, _ = rlstep(f"diff --rows 20 {folder} -- {launch}", capsys)
    assert (status, "version as in the run" in out) == (1, True)


def test_a_part_of_a_run_is_not_counted_against_a_launch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launch = f"--rows 36 --version 1.16.0 -- {LAUNCH.format(passes=2)}"
    events = scripted_run(REUSE)
    for name, part in (
        ("killed", events[:20]),
        ("resumed", scripted_run(REUSE, start=LoaderPosition(updates=4, version=4, cycle=0))),
    ):
        folder = record(tmp_path / name, part).place
        status, out, _ = rlstep(f"diff {folder} {launch}", capsys)
        assert (status, "counts are those of a part of the run" in " ".join(out.split())) == (0, True), out


def test_what_cannot_be_compared_is_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    status, _, err = rlstep(f"diff {empty} {empty}", capsys)
    assert (status, "holds no record" in err) == (2, True)
    with pytest.raises(NoRecordError):
        recorded_run(str(tmp_path / "nowhere"))
    no_plan = record(tmp_path / "no_plan", [msgspec.structs.replace(scripted_run(REUSE)[0], schedule=None)])  # type: ignore[call-arg]
    status, _, err = rlstep(f"diff {no_plan.place} -- {LAUNCH.format(passes=2)}", capsys)
    assert (status, "has no plan" in err) == (2, True)
    long = f"trl grpo --output_dir {'x' * 400} --max_steps 4"
    status, out, _ = rlstep(f"diff '{long}' '{long}'", capsys)
    assert (status, out.startswith("the same schedule")) == (0, True)
