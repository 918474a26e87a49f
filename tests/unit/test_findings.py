"""What a finding says: which rollouts it covers, which faults are told apart, and why it is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.record.events import (
    Measured,
)
from tests.unit.scripted import make_plan, scripted_run
from tests.unit.scripted_phases import PhaseCase, composed, phase_plan, scripted_phases

if TYPE_CHECKING:
    from rlstep_hooks.judge.report import Report, RuleOutcome
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.events import AnyEvent

PLAN = make_plan(iterations=2, max_steps=16)
"""8 rollouts of 2 updates."""


def judge(events: list[AnyEvent]) -> Report:
    judged = Judge()
    for event in events:
        judged.observe(event)
    return judged.report()


def found(events: list[AnyEvent], code: str) -> list[Finding]:
    return [finding for finding in judge(events).findings if finding.code == code]


def outcome(report: Report, code: str) -> RuleOutcome:
    (result,) = (rule for rule in report.rules if rule.code == code)
    return result


def gaps(values: dict[int, float]) -> list[AnyEvent]:
    """A run whose engine's log-probs are as far from the trainer's, rollout by rollout; 0.0001 in those not named."""
    events: list[AnyEvent] = []
    for event in scripted_run(PLAN):
        if isinstance(event, Measured):
            rollouts = (msgspec.structs.replace(r, sampler_gap_mean=values.get(r.index, 1e-4)) for r in event.rollouts)
            event = msgspec.structs.replace(event, rollouts=tuple(rollouts))
        events.append(event)
    return events


# One finding for one fault


def test_repetitions_are_listed_by_rollout() -> None:
    (finding,) = found(gaps({2: 0.005, 3: 0.004, 4: 0.005, 7: 0.006}), "RLS403")
    assert (finding.occurrences, finding.rollouts) == (4, (2, 3, 4, 7))
    assert finding.repeated == "4 times, in rollouts 2 to 4 and 7"
    assert "4 times, in rollouts 2 to 4 and 7" in str(finding)


def test_values_of_another_magnitude_are_another_finding() -> None:
    findings = found(gaps({1: 0.005, 3: 0.103, 4: 0.103, 6: 3.0}), "RLS403")
    assert [(f.where.rollout, f.occurrences) for f in findings] == [(1, 1), (3, 2), (6, 1)]


def test_differences_of_another_kind_are_another_finding() -> None:
    case = PhaseCase(schedule=phase_plan(critic=True, critic_order="before", rollouts=8))
    events = composed(scripted_phases(case), 0)
    surplus = [e for e in events if not _policy_of(e, 2)]
    both = [e for e in surplus if not _critic_of(e, 5)]
    findings = found(both, "RLS211")
    assert len(findings) == len({finding.observed for finding in findings} | {finding.why for finding in findings}) - 0


def _policy_of(event: AnyEvent, rollout: int) -> bool:
    return False


def _critic_of(event: AnyEvent, rollout: int) -> bool:
    return False
