"""`rlstep doctor`: what is here, and what can be done with it."""

from __future__ import annotations

import pytest

from rlstep_hooks.cli import doctor
from rlstep_hooks.systems.openrlhf import releases as openrlhf
from rlstep_hooks.systems.sb3 import releases as sb3
from rlstep_hooks.systems.trl import releases as trl
from rlstep_hooks.systems.verl import releases as verl


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for releases in (trl, verl, openrlhf, sb3):
        monkeypatch.setattr(releases, "installed_release", lambda: None)
    monkeypatch.setattr(doctor, "_release", lambda package: "")


def test_without_a_framework_nothing_can_be_audited(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.show() == 2
    printed = capsys.readouterr().out
    assert all(f"{name}: not installed" in printed for name in ("TRL", "verl", "OpenRLHF", "Stable-Baselines3"))


def test_a_release_that_was_not_read_is_not_supported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sb3, "installed_release", lambda: sb3.Release("2.10.0"))
    assert doctor.show() == 2
    assert "Stable-Baselines3 2.10.0: not supported: supported are 2.7 to 2.9" in capsys.readouterr().out


def test_torch_alone_is_enough_for_a_loop_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_release", lambda package: "2.13.0" if package == "torch" else "")
    assert doctor.show() == 0
