"""Each fault of an RLlib run is found by its rule, with its cause."""

from __future__ import annotations

import pytest

from tests.systems.rllib.faults import FAULTS, Fault
from tests.systems.rllib.tiny import config, trained


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    report = trained(
        config(**fault.settings), rollouts=fault.rollouts, breaks=lambda algorithm: fault.breaks(algorithm, monkeypatch)
    )
    assert report.verdict == "FAIL"
    found = {finding.code: finding for finding in report.findings if finding.severity == "error"}
    assert fault.code in found, "\n".join(map(str, report.findings))
    finding = found[fault.code]
    assert fault.says in f"{finding.why} {finding.observed} {finding.fix}", str(finding)
