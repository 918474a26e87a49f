"""A silence is told once, when it is long enough, and again only after something was recorded."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.cli.app import main
from rlstep_hooks.cli.stalled import StallWatch
from rlstep_hooks.record.events import Rollout, RunStarted, Update
from rlstep_hooks.record.ledger import Ledger, open_ledger, records

if TYPE_CHECKING:
    from pathlib import Path


def recorded(folder: Path, rollouts: int = 3) -> Ledger:
    """A run of this process that began an hour ago, with a rollout and an update each second, and is not over."""
    ledger = open_ledger(folder, "a", "rank0").ledger
    ledger.write(
        RunStarted(
            run="a", rank=0, world_size=1, host=os.uname().nodename, pid=os.getpid(), started=time.time() - 3600, schedule=None
        )
    )  # fmt: skip
    for index in range(rollouts):
        ledger.write(
            Rollout(at=float(index), index=index, samples=4, policy_version=index),
            Update(at=index + 0.5, index=index, version=index + 1, microbatches=1),
        )
    return ledger


def silent_for(folder: Path, seconds: float) -> None:
    for record in records(folder)["a"]:
        then = time.time() - seconds
        os.utime(record.path, (then, then))


def test_a_silence_is_told_once(tmp_path: Path) -> None:
    ledger = recorded(tmp_path)
    watch = StallWatch(tmp_path, "a", after=20.0)
    silent_for(tmp_path, 5)
    assert watch.look() == []
    silent_for(tmp_path, 25)
    told = watch.look()
    assert told[1].startswith("  rank 0: the last event is an update, ")
    assert "; a rollout comes next, which took 0.5 s before, and 0.5 s at most" in told[1]
    assert watch.look() == []
    ledger.write(Rollout(at=4.0, index=3, samples=4, policy_version=3))
    assert watch.look() == []
    silent_for(tmp_path, 10)
    assert watch.look() == []


def test_who_follows_is_told_of_a_silence_that_is_long_for_this_run(tmp_path: Path) -> None:
    recorded(tmp_path)
    watch = StallWatch(tmp_path, "a")
    silent_for(tmp_path, 20)
    assert watch.look() == []
    silent_for(tmp_path, 40)
    assert watch.look()[0].startswith("the run stands still: nothing was recorded for ")
    recorded(tmp_path / "first", rollouts=0)
    first = StallWatch(tmp_path / "first", "a")
    silent_for(tmp_path / "first", 4000)
    assert first.look() == []  # nothing of this run says how long its first rollout takes


def test_a_report_of_a_run_that_is_not_over_says_where_it_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path)
    with pytest.raises(SystemExit):
        main(["report", str(tmp_path)])
    said = capsys.readouterr().err
    assert "rlstep: the run stands still: nothing was recorded for " in said
    assert "  rank 0: the last event is an update, " in said


def test_seconds_are_a_number_above_0(capsys: pytest.CaptureFixture[str]) -> None:
    for given in ("0", "-3", "soon", "inf", "nan"):
        with pytest.raises(SystemExit) as ended:
            main(["run", "--stalled-after", given, "--", "true"])
        assert ended.value.code == 2
        assert "a number of seconds above 0" in capsys.readouterr().err
