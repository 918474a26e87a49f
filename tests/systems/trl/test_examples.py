"""The examples for TRL as they stand: one trains and passes, one only plans."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from packaging.version import Version

from tests.systems.trl.conftest import RELEASE

EXAMPLES = Path(__file__).parents[3] / "examples"

pytestmark = pytest.mark.skipif(Version("1.9.1") > RELEASE, reason="its dapo loss has a known fault before that")


def test_the_audited_run_passes(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        runpy.run_path(str(EXAMPLES / "trl_grpo.py"), run_name="__main__")
    assert exit_.value.code == 0
    assert "PASS" in capfd.readouterr().err


def test_the_plan_of_two_configurations_that_look_alike(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "trl_plan.py"), run_name="__main__")
    printed = capfd.readouterr().out
    assert "31 rollouts · 31 updates" in printed
    assert "31 rollouts · 124 updates" in printed
