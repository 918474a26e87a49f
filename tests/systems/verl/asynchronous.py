"""What runs with faults of asynchronous trainers must show: each fault by its rule within one rollout, and nothing beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.detection.outcomes import Detected, note
from tests.systems.verl.audited import alarms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.systems.audited import Audited
    from tests.systems.verl.separate_faults import SeparateFault


def check_named(run: Audited, trainer: str, name: str, fault: SeparateFault, at: int) -> None:
    """The rule of a fault names it in the rollout of its first wrong event, or in the next."""
    places = range(at + fault.shows_after, at + fault.shows_after + 2)
    found = [f for f in alarms(run.report) if f.code == fault.code and fault.variant in f.observed]
    named = [place for place in places for f in found if place in {f.where.rollout, *f.rollouts}]
    note(
        Detected(
            framework="verl",
            fault=f"{trainer}: {name}",
            report=fault.report,
            code=fault.code,
            found=bool(named),
            delay=run.delay(fault.code, named[0]) if named else None,
            early=0,
        )
    )
    assert named, [str(finding) for finding in alarms(run.report)]


def check_beside(run: Audited, faults: Mapping[str, SeparateFault], made: Mapping[str, int], rollouts: int) -> None:
    """Training goes on to its end, and no alarm is raised in rollouts without a fault."""
    assert run.outcome.status == 0, run.outcome.tail
    assert run.report.counts.rollouts == rollouts
    places = {
        place
        for name, at in made.items()
        for place in range(at, at + faults[name].shows_after + faults[name].lasts + 2)
    }
    elsewhere = [str(f) for f in alarms(run.report) if f.where.rollout is not None and f.where.rollout not in places]
    assert not elsewhere


def check_described(faults: Mapping[str, SeparateFault], made: Mapping[str, int]) -> None:
    """Every fault is made, and says what it is and where it was reported."""
    assert set(made) == set(faults)
    assert all(fault.apply.__doc__ and fault.report for fault in faults.values())
