"""A launch has the command line that verl expects, and leaves nothing behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.systems.processes import marked
from tests.systems.verl.launch import Assets, command, grpo, launch

if TYPE_CHECKING:
    from pathlib import Path


def test_command_writes_values_as_hydra_reads_them(tmp_path: Path) -> None:
    overrides = {"a.b": True, "c": None, "+d": ["console", "file"], "e": tmp_path, "f": 1e-3}
    assert command(overrides)[3:] == ["a.b=true", "c=null", '+d=["console","file"]', f"e={tmp_path}", "f=0.001"]


def test_time_limit_ends_every_process(tmp_path: Path) -> None:
    endless = {"trainer.total_epochs": 100_000}
    outcome = launch(grpo(Assets.write(tmp_path)) | endless, tmp_path / "run", limit=60)
    assert outcome.status is None
    assert "Started a local Ray instance" in outcome.output
    assert not marked(outcome.mark)
