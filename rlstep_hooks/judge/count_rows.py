"""The counts of a run beside those of its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.timeline.totals import planned_totals

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.planning.schedule import Schedule


_OF_THE_ORDER = ("rollouts", "micro-batches", "updates", "critic updates")
"""Counts of what the judge compares one by one. Of the others, data and engine may leave some open."""


class CountRow(msgspec.Struct, frozen=True):
    """One count of a run beside its plan."""

    name: str
    planned: int | None
    """The count that the plan gives; None if the plan does not know it."""
    observed: int
    most: bool = False
    """Whether the plan knows only the largest number."""

    @property
    def differs(self) -> bool:
        """Whether the run did not do what is planned."""
        if self.planned is None:
            return False
        return self.observed > self.planned if self.most else self.observed != self.planned


def count_rows(report: Report) -> list[CountRow]:
    """The counts of a run beside their plan. A row that neither the plan nor the run has is left out. Counts and plan of a resumed run
    begin at its resume."""
    counts, schedule = report.counts, report.schedule
    if report.ending == "exported":
        return [
            CountRow("rollouts", schedule.rollouts if schedule is not None else None, counts.rollouts),
            CountRow("samples", None, counts.samples),
        ]
    plan = planned_totals(schedule, report.start) if schedule is not None else None
    exact = schedule is not None and schedule.rows_bound == "exact"
    most = schedule is not None and schedule.updates_bound == "upper"
    if plan is None and schedule is not None and not report.updates_before:
        rollouts, updates = schedule.rollouts, schedule.updates
    else:
        rollouts, updates = (plan.rollouts, plan.updates) if plan is not None else (None, None)
    rows = [
        CountRow("rollouts", rollouts, counts.rollouts),
        CountRow(_samples_name(schedule), plan.samples if plan is not None and exact else None, counts.samples),
        CountRow("old log-prob refreshes", plan.refreshes if plan is not None else None, counts.old_logprob_refreshes),
        CountRow(
            _bounded("micro-batches", most), plan.microbatches if plan is not None else None, counts.microbatches, most
        ),
        CountRow(_bounded("updates", most), updates, counts.updates, most),
    ]
    if report.updates_before:
        rows.append(CountRow("updates before it was resumed", None, report.updates_before))
    critic = schedule.critic if schedule is not None else None
    if critic is not None or counts.critic_updates:
        planned = plan.critic_updates if plan is not None and critic is not None else None
        rows.append(CountRow("critic updates", planned, counts.critic_updates))
    syncs = plan.syncs if plan is not None and schedule is not None and schedule.syncs != "unseen" else None
    if syncs is not None or counts.weight_syncs:
        rows.append(CountRow("weight syncs", syncs, counts.weight_syncs))
    if counts.skipped_updates:
        rows.append(CountRow("skipped updates", None, counts.skipped_updates))
    if counts.evaluations or counts.evaluation_rollouts:
        rows.append(CountRow("evaluation rollouts", None, counts.evaluation_rollouts))
    return rows


def _bounded(name: str, most: bool) -> str:
    return f"{name} (at most)" if most else name


def unlike_plan(report: Report) -> str:
    """Rollouts and updates of a completed run that are others than planned; empty if none are, or if the plan leaves them open.

    Whatever else the judge compared: a table that shows such numbers stands below no PASS.
    """
    if report.ending != "completed" or report.counts.skipped_updates:
        return ""
    rows = [row for row in count_rows(report) if row.differs and row.name.partition(" (")[0] in _OF_THE_ORDER]
    return ", ".join(f"{row.observed} {row.name} where {row.planned} are planned" for row in rows)


def explains_counts(findings: Iterable[Finding]) -> bool:
    """Whether a finding says that the run is another than planned: a warning about its configuration, its order, or its resume."""
    return any(found.severity != "info" and found.code[3] in "127" for found in findings)


def _samples_name(schedule: Schedule | None) -> str:
    """The name of the row of samples: where a loader drives the run, each process counts its own samples."""
    shared = schedule is not None and schedule.loop == "loader" and schedule.world_size > 1
    return "samples (of one process)" if shared else "samples"
