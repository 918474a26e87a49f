"""The rules that look at a plan, before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.rules.data.rows import NoUpdates, RowsDropped, TooFewRows
from rlstep_hooks.judge.rules.data.samples import SamplesNeverTrained
from rlstep_hooks.judge.rules.learning_rate import RateFollowsRollouts, ScheduleHorizon, WarmupLength
from rlstep_hooks.judge.rules.plan.age import OldAndNotCorrected
from rlstep_hooks.judge.rules.plan.configuration import ForeignSettings, Refused, SettingsWithoutEffect
from rlstep_hooks.judge.rules.plan.cycle import ClipNeverActs, IntervalMeetsCycle
from rlstep_hooks.judge.rules.plan.sizes import (
    MinibatchNotBelowRollout,
    PromptsForSamples,
    SeveralRolloutsForOneUpdate,
    UpdatesNotAsTheSizesSay,
)
from rlstep_hooks.judge.rules.progress import Progress
from rlstep_hooks.planning.finding import Finding, Where
from rlstep_hooks.record.events import RunStarted

if TYPE_CHECKING:
    from rlstep_hooks.judge.rules.base import Rule
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
"""For each code that a plan can find: a report of what it costs."""


def refused(refusal: PlanError, framework: str, *, fork: bool = False) -> Finding:
    """The finding of a launch that the framework itself refuses; a warning where it is of a fork, which may accept it."""
    finding = _planned(
        Refused,
        expected=f"sizes that {framework} accepts",
        observed=refusal.message,
        why=f"{framework} ends {'such a' if fork else 'the'} run with this error {refusal.when} ({refusal.source})"
        + ("; what the fork does is not known" if fork else ""),
        fix=refusal.fix,
    )
    return msgspec.structs.replace(finding, severity="warning") if fork else finding


def unknown_setting(release: str, refusal: str, place: str, remedy: str) -> Finding:
    """The finding of a setting that this release does not have, but another one, or under another name."""
    return _planned(
        Refused,
        expected=f"settings of {release}",
        observed=refusal,
        why=f"{place}: {release} ends the run with this error at once",
        fix=remedy,
    )


def foreign_settings(release: str, names: list[str], because: str) -> Finding:
    """The finding of settings that no release has; `because` is how the framework refuses them, or what other program has them."""
    return _planned(
        ForeignSettings,
        expected=f"settings of {release}",
        observed=", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else ""),
        why=f"{because.rstrip('.')}. Where it runs, it is a fork, whose code was not read",
        fix="compare the plan with the fork's trainer, or take the settings out",
    )


def dropped_settings(release: str, names: list[str], because: str, remedy: str) -> Finding:
    """The finding of settings that this release takes and drops; `because` is what in its source does so."""
    return _planned(
        SettingsWithoutEffect,
        expected=f"settings of {release}",
        observed=", ".join(names),
        why=f"{release} does not have {'them' if len(names) > 1 else 'it'} and raises no error: {because}",
        fix=remedy,
    )


def between_releases(title: str, release: str, names: list[str], apart: str) -> Finding:
    """The finding of settings that releases have, but none has all of; `apart` says which has which."""
    return _planned(
        ForeignSettings,
        expected=f"settings of one release of {title}",
        observed=", ".join(names),
        why=f"no release has all settings of this launch ({apart}): it is written for a checkout between releases, whose code was not "
        f"read. {title} {release} itself ends the run at these",
        fix="compare the plan with the trainer of that checkout, or take the settings out",
    )


def _planned(rule: type[Rule], *, expected: str, observed: str, why: str, fix: str) -> Finding:
    """A finding of a rule whose launch has no Schedule to look at, or needs none."""
    return Finding(
        code=rule.code,
        severity=rule.severity,
        title=rule.title,
        expected=expected,
        observed=observed,
        where=Where(),
        why=why,
        fix=fix,
        planned=True,
    )


def check_plan(reading: Reading) -> list[Finding]:
    """Findings of a plan, errors first."""
    schedule = reading.schedule
    started = RunStarted(run="plan", rank=0, world_size=schedule.world_size, schedule=schedule, facts=reading.facts)
    progress = Progress(schedule, started)
    # Of a plan without any rollout, only the rules that report this are asked.
    asked = [rule for rule in PLAN_RULES if schedule.rollouts != 0 or rule.seen_in == "plan"]
    found = [finding for rule in asked if (finding := rule(progress).started(started)) is not None]
    return sorted(found, key=lambda finding: ("error", "warning", "info").index(finding.severity))
