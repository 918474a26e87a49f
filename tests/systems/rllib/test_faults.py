"""Each fault of an RLlib run is found by its rule, with its cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.planning.finding import Where
from tests.detection.outcomes import Detected, delay_of, note
from tests.systems.rllib.faults import FAULTS, Fault
from tests.systems.rllib.tiny import config, trained

if TYPE_CHECKING:
    from rlstep_hooks.record.events import AnyEvent


class Events:
    """Keeps the events of a run."""

    def __init__(self) -> None:
        self.heard_so_far: list[AnyEvent] = []

    def heard(self, event: AnyEvent, judge: Any) -> None:
        self.heard_so_far.append(event)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlstep_hooks.session.session.INTERVAL", 0.0)  # numbers come with each rollout
    events = Events()
    report = trained(
        config(**fault.settings),
        rollouts=fault.rollouts,
        breaks=lambda algorithm: fault.breaks(algorithm, monkeypatch),
        listeners=(events,),
    )
    found = {finding.code: finding for finding in report.findings if finding.severity == "error"}
    note(
        Detected(
            framework="RLlib",
            fault=fault.name,
            report="textbook PPO",
            code=fault.code,
            found=fault.code in found,
            delay=delay_of(events.heard_so_far, Judge(), fault.code, Where(rollout=fault.first)),
            early=0,  # each is there from the first rollout on
        )
    )
    assert report.verdict == "FAIL"
    assert fault.code in found, "\n".join(map(str, report.findings))
    finding = found[fault.code]
    assert fault.says in f"{finding.why} {finding.observed} {finding.fix}", str(finding)
