"""verl trains on the CPU as it does elsewhere, and a launch leaves nothing behind."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import psutil

from tests.frameworks.verl.launch import MARK, Assets, command, grpo, launch

if TYPE_CHECKING:
    from pathlib import Path


def marked_processes() -> list[psutil.Process]:
    """Processes that any launch started."""
    found = []
    for process in psutil.process_iter():
        try:
            if MARK in process.environ():
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_command_writes_values_as_hydra_reads_them(tmp_path: Path) -> None:
    overrides = {"a.b": True, "c": None, "+d": ["console", "file"], "e": tmp_path, "f": 1e-3}
    assert command(overrides)[3:] == ["a.b=true", "c=null", '+d=["console","file"]', f"e={tmp_path}", "f=0.001"]


def test_rollouts_come_from_the_trained_weights(tmp_path: Path) -> None:
    outcome = launch({**grpo(Assets.write(tmp_path)), "trainer.total_training_steps": 2}, tmp_path / "run")
    assert outcome.status == 0, outcome.output[-3000:]
    differences = [float(text) for text in re.findall(r"rollout_probs_diff_max:([0-9.e+-]+)", outcome.output)]
    # The engine's probabilities against the trainer's: rounding alone, also after the first weight sync.
    assert len(differences) == 2
    assert max(differences) < 1e-6
    norms = [float(text) for text in re.findall(r"actor/grad_norm:([0-9.e+-]+)", outcome.output)]
    assert len(norms) == 2
    assert min(norms) > 0
    assert not marked_processes()


def test_time_limit_ends_every_process(tmp_path: Path) -> None:
    outcome = launch(grpo(Assets.write(tmp_path)), tmp_path / "run", limit=20)
    assert outcome.status is None
    assert "Started a local Ray instance" in outcome.output
    assert not marked_processes()
