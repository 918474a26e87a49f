"""Faults are found by their rules; what else is found beside is of the same cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.systems.tinker.faults import PROGRAM, SERVER
from tests.systems.tinker.tiny import trained

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", PROGRAM)
def test_fault_of_a_program(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The first problem is the rule's."""
    breaks, settings, code = PROGRAM[name]
    breaks(monkeypatch)
    report = trained(home, tmp_path, **settings)
    assert report is not None
    found = [each.code for each in report.findings if each.severity != "info"]
    assert code in found, report.findings


@pytest.mark.parametrize("name", SERVER)
def test_fault_of_a_server(home: Path, tmp_path: Path, name: str) -> None:
    """What the client is asked for is right, and what comes back shows the fault."""
    settings, code = SERVER[name]
    report = trained(home, tmp_path, name, **settings)
    assert report is not None
    assert code in [each.code for each in report.findings if each.severity != "info"], report.findings
