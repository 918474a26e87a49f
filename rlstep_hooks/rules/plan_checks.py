"""RLS11x, RLS51x, RLS61x: what a plan alone already shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.report import Finding, Where

if TYPE_CHECKING:
    from rlstep_hooks.planning import PlanError
    from rlstep_hooks.readers.base import Reading


def refused(refusal: PlanError, framework: str) -> Finding:
    """The finding of a launch that the framework itself refuses."""
    return Finding(
        code="RLS110",
        severity="error",
        title="The framework refuses this launch",
        expected=f"sizes that {framework} accepts",
        observed=refusal.message,
        where=Where(),
        why=f"{framework} ends the run with this error {refusal.when} ({refusal.source})",
        fix=refusal.fix,
    )


def check_plan(reading: Reading) -> list[Finding]:
    """Findings of a plan."""
    return []
