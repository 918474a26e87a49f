"""Mistakes made on ms-swift's GRPOTrainer before it trains: found by the rule that names them, where they begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks import StepAuditCallback
from tests.systems.swift import tiny
from tests.systems.swift.faults import FAULTS
from tests.systems.trl.helpers import codes

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found(folder: Path, name: str) -> None:
    apply, code, rollout, settings = FAULTS[name]
    audit = StepAuditCallback(log_dir=None, listeners=())
    tiny.train(folder, [audit], apply=apply, **settings)
    report = audit.report
    found = next((finding for finding in report.findings if finding.code == code), None)
    assert found is not None, codes(report)
    assert rollout is None or found.where.rollout == rollout
    assert report.verdict == ("FAIL" if found.severity == "error" else "PASS")
