"""The counts of a run beside those of its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.timeline.totals import planned_totals

if TYPE_CHECKING:
    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.planning.schedule import Schedule


class CountRow(msgspec.Struct, frozen=True):
    """One count of a run beside its plan."""

    name: str
    planned: int | None
    """None if the plan does not know it."""
    observed: int


def count_rows(report: Report) -> list[CountRow]:
    """The counts of a run beside their plan. A row that neither the plan nor the run has is left out. Counts and plan of a resumed run
    begin at its resume."""
    counts, schedule = report.counts, report.schedule
    plan = planned_totals(schedule, report.start) if schedule is not None else None
    exact = schedule is not None and schedule.rows_bound == "exact"
    if plan is None and schedule is not None and not report.updates_before:
        rollouts, updates = schedule.rollouts, schedule.updates
    else:
        rollouts, updates = (plan.rollouts, plan.updates) if plan is not None else (None, None)
    rows = [
        CountRow("rollouts", rollouts, counts.rollouts),
        CountRow(_samples_name(schedule), plan.samples if plan is not None and exact else None, counts.samples),
        CountRow("old log-prob refreshes", plan.refreshes if plan is not None else None, counts.old_logprob_refreshes),
        CountRow(
            _bounded("micro-batches", schedule), plan.microbatches if plan is not None else None, counts.microbatches
        ),
        CountRow(_bounded("updates", schedule), updates, counts.updates),
    ]
    if report.updates_before:
        rows.append(CountRow("updates before it was resumed", None, report.updates_before))
    critic = schedule.critic if schedule is not None else None
    if critic is not None or counts.critic_updates:
        rows.append(
            CountRow("critic updates", plan.critic_updates if plan is not None else None, counts.critic_updates)
        )
    syncs = plan.syncs if plan is not None and schedule is not None and schedule.syncs != "unseen" else None
    if syncs is not None or counts.weight_syncs:
        rows.append(CountRow("weight syncs", syncs, counts.weight_syncs))
    if counts.skipped_updates:
        rows.append(CountRow("skipped updates", None, counts.skipped_updates))
    if counts.evaluations or counts.evaluation_rollouts:
        rows.append(CountRow("evaluation rollouts", None, counts.evaluation_rollouts))
    return rows


def _bounded(name: str, schedule: Schedule | None) -> str:
    return f"{name} (at most)" if schedule is not None and schedule.updates_bound == "upper" else name


def _samples_name(schedule: Schedule | None) -> str:
    """The name of the row of samples: where a loader drives the run, each process counts its own samples."""
    shared = schedule is not None and schedule.loop == "loader" and schedule.world_size > 1
    return "samples (of one process)" if shared else "samples"
