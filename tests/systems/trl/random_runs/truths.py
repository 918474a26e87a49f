"""Findings that are true of a legal configuration, each with its condition, computed from the configuration; all others are false."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlstep_hooks.judge.report import Report
    from tests.systems.trl.random_runs.draws import Draw


def true_findings(draw: Draw, config: Any, trainer: Any, report: Report) -> tuple[list[str], list[str]]:
    """The errors and warnings of a healthy run: codes of those that are true, texts of those that are not."""
    true: list[str] = []
    false: list[str] = []
    for finding in report.findings:
        if finding.severity == "info":
            continue
        false.append(f"{finding.code} {finding.severity}: {finding}")
    if not report.complete:
        false.append("incomplete: the report does not know that training reached its end")
    counts, schedule = report.counts, report.schedule
    if counts.updates + counts.skipped_updates != trainer.state.global_step:
        false.append(f"counts: {counts.updates} updates for {trainer.state.global_step}")
    if schedule is None:
        false.append("schedule: none")
    false.extend(f"contained: {topic}: {why}" for topic, why in report.not_evaluated.items() if "Error" in why)
    return true, false
