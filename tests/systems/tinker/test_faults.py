"""Faults are found by their rules; what else is found beside is of the same cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.systems.tinker.faults import DRAWN, LATER, PROGRAM, SERVER
from tests.systems.tinker.tiny import trained

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.judge.report import Report


def _is_found(report: Report, name: str, code: str) -> None:
    """The rule has a finding in the first rollout that can show the fault."""
    found = [each for each in report.findings if each.severity != "info" and each.code == code]
    rollouts = [each.where.rollout or 0 for each in found]
    if name in DRAWN:
        assert rollouts, report.findings
    else:
        assert LATER.get(name, 0) in rollouts, report.findings


@pytest.mark.parametrize("name", PROGRAM)
def test_fault_of_a_program(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The first problem is the rule's."""
    breaks, settings, code = PROGRAM[name]
    breaks(monkeypatch)
    report = trained(home, tmp_path, **settings)
    assert report is not None
    _is_found(report, name, code)


@pytest.mark.parametrize("name", SERVER)
def test_fault_of_a_server(home: Path, tmp_path: Path, name: str) -> None:
    """What the client is asked for is right, and what comes back shows the fault."""
    settings, code = SERVER[name]
    report = trained(home, tmp_path, name, **settings)
    assert report is not None
    _is_found(report, name, code)
