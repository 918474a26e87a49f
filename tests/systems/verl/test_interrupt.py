"""Ctrl-C reaches verl's driver; Ray then ends the processes that train."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.record.events import RunEnded
from rlstep_hooks.show.summary import ending
from tests.systems.verl.audited import audited, problems
from tests.systems.verl.interrupting import MODULE, UPDATES
from tests.systems.verl.launch import grpo

if TYPE_CHECKING:
    from pathlib import Path

    from tests.systems.verl.launch import Assets

KILL_AFTER = "RAY_kill_worker_timeout_milliseconds"
"""Ray: milliseconds between SIGTERM and SIGKILL, by default 100 (ray_config_def.h, 2.60.0), too short for a busy machine."""


def test_a_run_that_is_interrupted_is_judged_up_to_there(assets: Assets, tmp_path: Path) -> None:
    many = grpo(assets) | {"trainer.total_epochs": 50}
    variables = {UPDATES: "4", KILL_AFTER: "20000"}
    run = audited(many, tmp_path / "run", modules=[MODULE], environment=variables, grace=20)
    assert run.outcome.status != 0
    ended = [event for event in run.record("controller") if isinstance(event, RunEnded)]
    assert [event.error.partition(":")[0] for event in ended] == ["KeyboardInterrupt"]
    assert problems(run.report) == []
    assert (run.report.verdict, run.report.ending) == ("PASS", "interrupted")
    assert "interrupted" in ending(run.report)
    assert run.report.counts.updates >= 4
