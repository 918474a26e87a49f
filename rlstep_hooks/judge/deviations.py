"""Known deviations, as data: where a framework does not do what its documents or configuration say."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from packaging.version import Version

from rlstep_hooks.judge.conformance import Difference
from rlstep_hooks.judge.rules.progress import Progress
from rlstep_hooks.planning.finding import Finding, Severity
from rlstep_hooks.planning.formula import FUNCTIONS, evaluate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.events import RunStarted


class Evidence(msgspec.Struct, frozen=True):
    """What is known when a finding is made."""

    finding: Finding
    progress: Progress
    difference: Difference | None = None


class Deviation(msgspec.Struct, frozen=True, kw_only=True):
    """One known deviation of a framework."""

    name: str
    title: str
    since: str
    """The first release that deviates."""
    fixed_in: str | None = None
    """The first release that no longer deviates; None if all later ones do."""
    document: str
    """What the documents or the configuration say."""
    code: str
    """What the code does."""
    evidence: str
    """Where the deviation was read or measured."""
    workaround: str
    severity: Severity = "error"
    """How severe the findings are that it explains; less where the framework does so in every healthy run and little is lost."""
    codes: frozenset[str]
    """Codes of the rules whose findings the deviation can explain."""
    when: str = ""
    """The runs that have it: an expression (`rlstep_hooks.planning.formula`) of settings and fields of their Schedule; empty for
    all runs."""
    applies: Callable[[Evidence], bool] = lambda evidence: True
    """Says whether the deviation explains this finding in such a run."""

    def concerns(self, version: str) -> bool:
        """Whether a release deviates in this way."""
        release = Version(version)
        return Version(self.since) <= release and (self.fixed_in is None or release < Version(self.fixed_in))

    def explains(self, evidence: Evidence) -> bool:
        """Whether the deviation explains a finding."""
        if evidence.finding.code not in self.codes:
            return False
        there = not self.when or bool(evaluate(self.when, OfSchedule(evidence.progress.schedule)))
        return there and self.applies(evidence)


class OfSchedule:
    """The values of a Schedule by name: its settings, else its fields; None for a setting that it does not have."""

    functions = FUNCTIONS

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule

    def __getitem__(self, name: str) -> Any:
        settings = self._schedule.settings
        return settings[name] if name in settings else getattr(self._schedule, name, None)

    def given(self, name: str) -> bool:
        """Whether the Schedule has the setting."""
        return name in self._schedule.settings


DeviationsOf = Callable[[str, str], tuple[Deviation, ...]]
"""The known deviations of one release: the framework's name in a Schedule, and the release. Whoever makes a judge hands it over."""


def none_known(framework: str, version: str) -> tuple[Deviation, ...]:
    """No deviation is known: the answer for a framework that keeps to its documents."""
    return ()


def explain(finding: Finding, deviation: Deviation) -> Finding:
    """The finding with the deviation's explanation and work-around instead of the general ones."""
    return msgspec.structs.replace(
        finding,
        severity=deviation.severity,
        deviation=deviation.name,
        why=f"known deviation: {deviation.title}. Planned: {deviation.document}. What happens: {deviation.code}",
        fix=deviation.workaround,
    )


def explained(findings: Sequence[Finding], started: RunStarted, deviations_of: DeviationsOf) -> list[Finding]:
    """Findings that came of several records of a run, each with the explanation of a deviation that it has.

    Args:
        findings: About the run as a whole, which no difference from the plan led to.
        started: How the run began.
        deviations_of: The known deviations of its framework.
    """
    schedule = started.schedule
    if schedule is None or not findings:
        return list(findings)
    known = deviations_of(schedule.framework, schedule.version)
    progress = Progress(schedule, started)

    def explanation(finding: Finding) -> Finding:
        evidence = Evidence(finding, progress)
        return next((explain(finding, deviation) for deviation in known if deviation.explains(evidence)), finding)

    return [explanation(finding) for finding in findings]
