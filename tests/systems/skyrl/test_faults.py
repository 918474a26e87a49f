"""Each fault of an SkyRL run is found by its rule, with its cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.planning.finding import Where
from tests.detection.outcomes import Detected, delay_of, note
from tests.systems.skyrl.faults import FAULTS, Fault
from tests.systems.skyrl.tiny import trained

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.record.events import AnyEvent


class Events:
    """Keeps the events of a run."""

    def __init__(self) -> None:
        self.heard_so_far: list[AnyEvent] = []

    def heard(self, event: AnyEvent, judge: Any) -> None:
        self.heard_so_far.append(event)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_found(fault: Fault, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlstep_hooks.session.session.INTERVAL", 0.0)  # numbers come with each rollout
    events = Events()
    report = trained(
        home,
        tmp_path,
        breaks=lambda trainer: fault.breaks(trainer, monkeypatch),
        keeps=fault.keeps,
        options={"listeners": (events,)},
        **fault.settings,
    )
    found = [finding for finding in report.findings if finding.severity == "error" and finding.code == fault.code]
    where = Where(rollout=fault.first or 0)
    note(
        Detected(
            framework="SkyRL",
            fault=fault.name,
            report="textbook PPO",
            code=fault.code,
            found=bool(found),
            delay=delay_of(events.heard_so_far, Judge(), fault.code, where),
            early=0,  # each is there from the first rollout on
        )
    )
    assert report.verdict == "FAIL", report.not_evaluated
    told = "\n".join(map(str, report.findings))
    assert any(
        fault.says in f"{finding.why} {finding.observed} {finding.fix}"
        and (fault.first is None or finding.where.rollout == fault.first)
        for finding in found
    ), told
