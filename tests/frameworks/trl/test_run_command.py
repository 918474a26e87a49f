"""`rlstep run` around a script that never heard of this package, with real training."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from rlstep_hooks.replay import report_of

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
from pathlib import Path
from rlstep_hooks.testing.tiny_trl import tiny_trainer
trainer = tiny_trainer(Path("out"), max_steps=4, num_iterations=2)
{change}
trainer.train()
"""
LIMIT = 300


def run(folder: Path, change: str = "", *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT.format(change=change))
    return subprocess.run(
        [sys.executable, "-m", "rlstep_hooks", "run", *options, "--dir", "log", "--", sys.executable, "train.py"],
        cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip


def test_a_script_is_audited_without_an_edit(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("PASS ") - done.stderr.count("PASS so far") == 1, "the report is printed once"
    report = report_of(tmp_path / "log")
    assert (report.verdict, report.counts.updates, report.complete) == ("PASS", 4, True)


def test_strict_turns_a_failure_into_status_1(tmp_path: Path) -> None:
    fault = "from rlstep_hooks.testing.trl_faults import FAULTS; FAULTS['regenerate_every_step'](trainer)"
    done = run(tmp_path, fault, "--strict")
    assert done.returncode == 1, done.stderr
    assert report_of(tmp_path / "log").verdict == "FAIL"
    assert "FAIL" in done.stderr
