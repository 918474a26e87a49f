"""What is said of processes that are silent, from the times in their records alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.judge.stillness import LONGER, SHORT, Stillness, stillness
from rlstep_hooks.record.events import (
    Attached,
    Generated,
    MicroBatch,
    Phase,
    PhaseEnded,
    Rollout,
    RunEnded,
    RunStarted,
    Update,
)
from rlstep_hooks.record.ledger import Record, open_ledger, records
from rlstep_hooks.show.stillness import duration, stillness_lines

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.record.events import AnyEvent

BEGAN = 1_000_000.0
GENERATES, TRAINS = 40.0, 1.0
GONE = 2**22 - 1
"""A process id that no process has here."""


def started(rank: int = 0, world_size: int = 1, pid: int | None = None) -> RunStarted:
    return RunStarted(
        run="a", rank=rank, world_size=world_size, host=os.uname().nodename, pid=pid or os.getpid(), started=BEGAN,
        schedule=None,
    )  # fmt: skip


def history(rollouts: int, updates: int = 2) -> list[AnyEvent]:
    """A healthy run of so many whole rollouts: 40 s to generate, a second for each micro-batch, whose update comes with it."""
    events: list[AnyEvent] = []
    at = 0.0
    for rollout in range(rollouts):
        at += GENERATES
        events.append(Rollout(at=at, index=rollout, samples=4, policy_version=rollout * updates))
        for update in range(updates):
            at += TRAINS
            index = rollout * updates + update
            events.append(MicroBatch(at=at, index=index, samples=4, policy_version=index))
            events.append(Update(at=at + 0.1, index=index, version=index + 1, microbatches=1))
    return events


def written(folder: Path, process: str, events: list[AnyEvent]) -> list[Record]:
    ledger = open_ledger(folder, "a", process).ledger
    ledger.write(*events)
    ledger.close()
    return records(folder)["a"]


def at(events: list[AnyEvent], seconds: float) -> float:
    """So long after the last of these events."""
    return BEGAN + events[-1].at + seconds


def found(recorded: list[Record], now: float) -> Stillness:
    still = stillness(recorded, now)
    assert still is not None
    return still


def test_what_comes_next_and_how_long_that_took(tmp_path: Path) -> None:
    events = history(3)
    still = found(written(tmp_path, "rank0", [started(), *events]), at(events, 312.0))
    [of] = still.processes
    assert (of.process, of.last, of.rollouts, of.updates, of.next) == ("rank 0", "an update", 3, 6, "a rollout")
    assert (of.usual, of.longest, of.seconds) == pytest.approx((GENERATES - 0.1, GENERATES - 0.1, 312.0))
    assert still.is_long
    assert stillness_lines(still) == [
        "the run stands still: nothing was recorded for 5 min 12 s",
        "  rank 0: the last event is an update, 5 min 12 s ago (rollouts: 3, updates: 6); a rollout comes next, which took 40 s "
        "before, and 40 s at most",
    ]


def test_the_place_within_a_rollout_says_what_comes_next(tmp_path: Path) -> None:
    events = history(3)[:-1]
    [of] = found(written(tmp_path, "rank0", [started(), *events]), at(events, 1.0)).processes
    assert (of.last, of.next, of.usual) == ("a micro-batch", "an update", pytest.approx(0.1))
    events = history(3)[:-2]
    [of] = found(written(tmp_path / "b", "rank0", [started(), *events]), at(events, 1.0)).processes
    assert (of.last, of.next, of.usual) == ("an update", "a micro-batch", pytest.approx(TRAINS - 0.1))


@pytest.mark.parametrize(
    ("silent", "long"), [(SHORT - 1, False), (GENERATES * LONGER - 10, False), (GENERATES * LONGER + 1, True)]
)
def test_a_run_is_measured_by_its_own_times(silent: float, long: bool, tmp_path: Path) -> None:
    events = history(3)
    assert found(written(tmp_path, "rank0", [started(), *events]), at(events, silent)).is_long is long


def test_the_beginning_of_a_run_has_nothing_to_be_measured_by(tmp_path: Path) -> None:
    still = found(written(tmp_path, "rank0", [started()]), BEGAN + 3600)
    assert not still.is_long
    assert stillness_lines(still)[1] == "  rank 0: it began 60 min 0 s ago, and nothing came of it yet"


def test_a_run_that_is_over_or_killed_does_not_stand_still(tmp_path: Path) -> None:
    events = history(1)
    assert (
        stillness(
            written(tmp_path / "a", "rank0", [started(), *events, RunEnded(status="completed", updates=2)]),
            at(events, 999),
        )
        is None
    )
    assert stillness(written(tmp_path / "b", "rank0", [started(pid=GONE), *events]), at(events, 999)) is None


def test_a_rank_that_is_gone_is_what_the_others_wait_for(tmp_path: Path) -> None:
    events = history(2)
    written(tmp_path, "rank0", [started(0, 2), *events])
    still = found(written(tmp_path, "rank1", [started(1, 2, pid=GONE), *events[:-2]]), at(events, 45.0))
    assert still.waited_for == ("rank 1",)
    assert still.is_long  # a process that is gone never comes back, however short the silence is
    lines = stillness_lines(still)
    assert lines[2].startswith(
        "  rank 1: its process is gone, and its record has no end; the last event is an update, "
    )
    assert lines[3] == "  the others wait for rank 1"


def test_a_rank_that_has_done_less_is_what_the_others_wait_for(tmp_path: Path) -> None:
    events = history(2)
    written(tmp_path, "rank0", [started(0, 2), *events])
    still = found(written(tmp_path, "rank1", [started(1, 2), *events[:-2]]), at(events, 500.0))
    assert still.waited_for == ("rank 1",)


def test_ranks_that_have_done_the_same_are_not_told_apart(tmp_path: Path) -> None:
    events = history(2)
    written(tmp_path, "rank0", [started(0, 2), *events])
    still = found(written(tmp_path, "rank1", [started(1, 2), *events]), at(events, 500.0))
    assert still.waited_for == ()


def test_a_trainer_within_a_call_says_so(tmp_path: Path) -> None:
    first = Attached(run="a", process="rank0", host=os.uname().nodename, pid=os.getpid(), started=BEGAN)
    done = [Phase(at=1.0, name="policy_updates", number=0), PhaseEnded(at=2.0, name="policy_updates", number=0)]
    still = found(
        written(tmp_path, "rank0", [first, *done, *history(1), Phase(at=90.0, name="policy_updates", number=1)]),
        BEGAN + 400,
    )
    [of] = still.processes
    assert of.within == "policy_updates"
    assert "; it is within the call policy_updates" in stillness_lines(still)[1]


def test_a_controller_waits_for_a_call_to_return(tmp_path: Path) -> None:
    events: list[AnyEvent] = []
    for number in range(3):
        begins = 100.0 * number
        events.append(Generated(at=begins, index=number, samples=8, prompts=2))
        events.append(Phase(at=begins + 30, name="policy_updates", number=number))
    still = found(written(tmp_path, "controller", [started(), *events[:-1]]), at(events[:-1], 400.0))
    [of] = still.processes
    assert (of.process, of.last, of.next, of.usual) == ("controller", "a rollout", "the call policy_updates", 30.0)
    assert not of.within


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.44, "0.4 s"), (41.2, "41 s"), (119, "119 s"), (312, "5 min 12 s"), (7500, "2 h 5 min")]
)
def test_lengths_of_time(seconds: float, words: str) -> None:
    assert duration(seconds) == words
