"""`rlstep run` around a PPOTrainer script that never heard of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.reports import report_of
from tests.systems.run_command import run_script

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
from rlstep_hooks.testing.tiny_ppo import tiny_ppo_trainer
tiny_ppo_trainer("out", rows=16, total_episodes=16).train()
"""


def test_a_script_is_audited_without_an_edit(tmp_path: Path) -> None:
    done = run_script(tmp_path, SCRIPT)
    assert done.returncode == 0, done.stderr
    report = report_of(tmp_path / "log")
    assert (report.verdict, report.counts.rollouts, report.counts.updates, report.complete) == ("PASS", 4, 8, True)
