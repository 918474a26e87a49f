"""Which ledger a trainer gets. Tests that need Ray are in tests/systems/verl/test_ray_sink.py."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.record.ledger import FolderLedger
from rlstep_hooks.session import ray_sink

if TYPE_CHECKING:
    from pathlib import Path


def test_a_trainer_writes_its_own_file_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ray_sink.SETTING, raising=False)
    ledger = ray_sink.open_trainer_ledger(tmp_path, "run", "rank0")
    assert isinstance(ledger, FolderLedger)
    assert ledger.path == tmp_path / "run.rank0.jsonl"
    ledger.close()
    assert "ray" not in sys.modules


def test_an_unknown_setting_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ray_sink.SETTING, "redis")
    with pytest.raises(ValueError, match="RLSTEP_SINK=redis is not known; it may be ray"):
        ray_sink.open_trainer_ledger(tmp_path, "run", "rank0")
