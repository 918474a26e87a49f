"""What every view of a report says in the same words: the verdict in a sentence, counts beside their plan, what was not evaluated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.planning.finding import Where
from rlstep_hooks.planning.words import number

if TYPE_CHECKING:
    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.planning.schedule import Schedule

_SYNCS_BEFORE_FIRST = {"first_and_after_updates": 1, "after_updates": 0}


class CountRow(msgspec.Struct, frozen=True):
    """One count of a run beside its plan."""

    name: str
    planned: int | None
    """None where no plan knows it."""
    observed: int


class NotEvaluated(msgspec.Struct, frozen=True):
    """What a report does not judge."""

    reasons: dict[str, str]
    """Rules' codes, quantities or topics that share a reason, with it."""
    idle: list[str]
    """Codes of rules that had nothing to compare in this run."""


def verdict_words(report: Report) -> str:
    """The verdict as people read it."""
    return report.verdict.replace("_", " ")


def first_problem(report: Report) -> Finding | None:
    """The finding to look at first: the first error, else the first warning."""
    return next((finding for finding in report.findings if finding.severity != "info"), None)


def rule_counts(report: Report) -> str:
    """How many rules came to what. A rule that only warned did not fail: a run with warnings passes."""
    errors = {finding.code for finding in report.findings if finding.severity == "error"}
    found = [rule.code for rule in report.rules if rule.verdict == "FAIL"]
    failed = sum(code in errors for code in found)
    passed = sum(rule.verdict == "PASS" for rule in report.rules)
    unknown = sum(rule.verdict == "NOT_EVALUATED" for rule in report.rules)
    warned = f", {len(found) - failed} warned" if len(found) > failed else ""
    return f"{passed} rules passed, {failed} failed{warned}, {unknown} not evaluated"


def sentence(report: Report) -> str:
    """Why the verdict is what it is."""
    problem = first_problem(report)
    if report.verdict == "FAIL" and problem is not None:
        return f"{problem.title}: expected {problem.expected}, observed {problem.observed}. {_place(problem)}".rstrip()
    if report.verdict == "NOT_EVALUATED":
        reasons = report.not_evaluated
        reason = next((reasons[topic] for topic in ("order", "record", "samples") if topic in reasons), "")
        reason = reason or next(iter(reasons.values()), "nothing was observed that could be compared with a plan")
        return f"The run could not be compared with its plan: {reason}."
    checks = sum(rule.checks for rule in report.rules if rule.verdict == "PASS")
    made = f"{number(report.counts.rollouts, 'rollouts')} and {number(report.counts.updates, 'updates')}"
    text = f"No difference from the plan in {made}, after {number(checks, 'comparisons')}."
    return text if problem is None else f"{text} To look at: {problem.title}. {_place(problem)}".rstrip()


def _place(finding: Finding) -> str:
    return "" if finding.where == Where() else f"First at {finding.where}."


def count_rows(report: Report) -> list[CountRow]:
    """Counts beside their plan. Those that neither the plan nor the run has are left out."""
    counts, schedule = report.counts, report.schedule
    rows = [
        CountRow("rollouts", schedule.rollouts if schedule else None, counts.rollouts),
        CountRow(_samples_name(schedule), _planned_samples(schedule), counts.samples),
        CountRow("old log-prob refreshes", _planned_refreshes(schedule), counts.old_logprob_refreshes),
        CountRow("micro-batches", None, counts.microbatches),
        CountRow(_updates_name(schedule), schedule.updates if schedule else None, counts.updates),
    ]
    if report.updates_before:
        rows.append(CountRow("updates before it was resumed", None, report.updates_before))
    critic = schedule.critic if schedule else None
    if critic is not None or counts.critic_updates:
        rows.append(CountRow("critic updates", critic.updates if critic else None, counts.critic_updates))
    syncs = _planned_syncs(schedule)
    if syncs is not None or counts.weight_syncs:
        rows.append(CountRow("weight syncs", syncs, counts.weight_syncs))
    if counts.skipped_updates:
        rows.append(CountRow("skipped updates", None, counts.skipped_updates))
    if counts.evaluations or counts.evaluation_rollouts:
        rows.append(CountRow("evaluation rollouts", None, counts.evaluation_rollouts))
    return rows


def _updates_name(schedule: Schedule | None) -> str:
    return "updates (at most)" if schedule is not None and schedule.updates_bound == "upper" else "updates"


def _samples_name(schedule: Schedule | None) -> str:
    return "samples (of one process)" if schedule is not None and _processes_sharing(schedule) > 1 else "samples"


def _processes_sharing(schedule: Schedule) -> int:
    """Processes that a rollout's samples are counted in: where a loader drives the run, each counts its own."""
    return schedule.world_size if schedule.loop == "loader" else 1


def _planned_samples(schedule: Schedule | None) -> int | None:
    if schedule is None or schedule.rollouts is None or schedule.rows_bound != "exact":
        return None
    each, last = schedule.samples_per_rollout, schedule.samples_of_last_rollout
    smaller = schedule.rollouts // schedule.rollouts_per_epoch if last and schedule.rollouts_per_epoch else 0
    return ((schedule.rollouts - smaller) * each + smaller * last) // _processes_sharing(schedule)


def _planned_refreshes(schedule: Schedule | None) -> int | None:
    if schedule is None:
        return None
    return 0 if schedule.old_logprob_source in ("detach", "engine", "none") else schedule.rollouts


def _planned_syncs(schedule: Schedule | None) -> int | None:
    if schedule is None or schedule.rollouts is None or schedule.syncs == "unseen":
        return None
    return schedule.rollouts + _SYNCS_BEFORE_FIRST[schedule.syncs]


def not_evaluated(report: Report) -> NotEvaluated:
    """What could not be judged, with reasons; apart from it, rules that merely had nothing to compare."""
    idle = [rule.code for rule in report.rules if rule.verdict == "NOT_EVALUATED" and rule.idle]
    names: dict[str, list[str]] = {}
    for name, reason in report.not_evaluated.items():
        if name not in idle:
            names.setdefault(reason, []).append(name)
    return NotEvaluated({", ".join(together): reason for reason, together in names.items()}, idle)
