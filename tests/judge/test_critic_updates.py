"""A skipped optimizer step of the critic is found and told apart from the policy's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from rlstep_hooks.record.events import NOT_FINITE, Update
from tests.scripted_phases import Live, PhaseCase, Script, phase_plan, scripted_phases

if TYPE_CHECKING:
    from rlstep_hooks.planning.finding import Finding

RUN = scripted_phases(
    PhaseCase(schedule=phase_plan(critic=phase_plan(samples=8, minibatches=(8,), microbatch=4, reuse=1)))
)
"""Each rollout: one update of the critic, two of the policy."""


def found_in(script: Script) -> list[Finding]:
    return [finding for finding in Live().play(script).findings if finding.severity != "info"]


def test_all_steps_made_is_no_finding() -> None:
    assert found_in(RUN) == []


@pytest.mark.parametrize(("reason", "severity"), [("", "error"), (NOT_FINITE, "warning")])
def test_a_step_left_out_is_found_at_its_rollout(reason: str, severity: str) -> None:
    third = [event for _, event in RUN if isinstance(event, Update) and event.role == "critic"][2]
    left_out = msgspec.structs.replace(third, applied=False, skip_reason=reason)
    (finding,) = found_in([(process, left_out if event is third else event) for process, event in RUN])
    assert (finding.code, finding.severity, finding.where.rollout) == ("RLS210", severity, 2)
    assert "of the critic" in finding.observed
