"""The rules that look at a plan, before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.rules.data.rows import NoUpdates, RowsDropped, TooFewRows
from rlstep_hooks.judge.rules.data.samples import SamplesNeverTrained
from rlstep_hooks.judge.rules.learning_rate.ticks import RateFollowsRollouts, ScheduleHorizon, WarmupLength
from rlstep_hooks.judge.rules.plan.age import OldAndNotCorrected
from rlstep_hooks.judge.rules.plan.configuration import ForeignSettings, Refused, ReleaseFault, SettingsWithoutEffect
from rlstep_hooks.judge.rules.plan.cycle import ClipNeverActs, IntervalMeetsCycle
from rlstep_hooks.judge.rules.plan.sizes import (
    MinibatchNotBelowRollout,
    PromptsForSamples,
    SeveralRolloutsForOneUpdate,
    UpdatesNotAsTheSizesSay,
)
from rlstep_hooks.judge.rules.progress import Progress
from rlstep_hooks.record.events import RunStarted

if TYPE_CHECKING:
    from rlstep_hooks.judge.rules.base import Rule
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.planning.reading import Reading
    from rlstep_hooks.planning.refusal import PlanError

PLAN_RULES: tuple[type[Rule], ...] = (
    Refused,
    SeveralRolloutsForOneUpdate,
    MinibatchNotBelowRollout,
    IntervalMeetsCycle,
    PromptsForSamples,
    ForeignSettings,
    SettingsWithoutEffect,
    ReleaseFault,
    TooFewRows,
    NoUpdates,
    SamplesNeverTrained,
    RateFollowsRollouts,
    OldAndNotCorrected,
    ClipNeverActs,
    UpdatesNotAsTheSizesSay,
    RowsDropped,
    ScheduleHorizon,
    WarmupLength,
)
"""Findings that are equally severe are shown in this order."""

REFUSED = Refused.code
REPORTS: dict[str, str] = {rule.code: rule.report for rule in PLAN_RULES}
"""A public report of what the fault costs, for each code that a plan can find."""


def refused(refusal: PlanError, framework: str, *, fork: bool = False) -> Finding:
    """The finding of a launch that the framework itself refuses; a warning where it is of a fork, which may accept it."""
    finding = Refused.planned(
        expected=f"sizes that {framework} accepts",
        observed=refusal.message,
        why=f"{framework} ends {'such a' if fork else 'the'} run with this error {refusal.when} ({refusal.source})"
        + ("; what the fork does is not known" if fork else ""),
        fix=refusal.fix,
    )
    return msgspec.structs.replace(finding, severity="warning") if fork else finding


def check_plan(reading: Reading) -> list[Finding]:
    """Findings of a plan, errors first."""
    schedule = reading.schedule
    started = RunStarted(run="plan", rank=0, world_size=schedule.world_size, schedule=schedule, facts=reading.facts)
    progress = Progress(schedule, started)
    # Of a plan without any rollout, only the rules that report this are asked.
    asked = [rule for rule in PLAN_RULES if schedule.rollouts != 0 or rule.seen_in == "plan"]
    found: list[Finding] = []
    for asking in asked:
        rule = asking(progress)
        rule.started(started)
        found += rule.fresh
    return sorted(found, key=lambda finding: ("error", "warning", "info").index(finding.severity))
