"""Known deviations, as data: where a framework does not do what its documents or configuration say."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from packaging.version import Version

from rlstep_hooks.judge.conformance import Difference
from rlstep_hooks.judge.rules.progress import Progress
from rlstep_hooks.planning.finding import Finding, Severity


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
    """First release that has it."""
    fixed_in: str | None
    """First release without it; None if all later ones have it."""
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
    """Codes of the rules whose findings it can explain."""
    applies: Callable[[Evidence], bool]
    """Whether it explains this finding in this run."""

    def concerns(self, version: str) -> bool:
        """Whether a release has it."""
        release = Version(version)
        return Version(self.since) <= release and (self.fixed_in is None or release < Version(self.fixed_in))


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
