"""The runs of a folder as a gate: which problems are new, and which rules that must look did not.

A gate that saw nothing does not pass. A problem has a key that stays the same from run to run, so that it can be known.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.report import Report
from rlstep_hooks.planning.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from rlstep_hooks.judge.suite import Suite


class JudgedRun(msgspec.Struct, frozen=True):
    """One training call."""

    name: str
    """The test that made the training call, or the name of the record."""
    by_test: bool
    report: Report


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A finding of some runs, told once."""

    key: str
    """A text that is the same wherever and whenever the problem is found: the rule, and the known deviation or a digest of the texts
    without their numbers."""
    finding: Finding
    """The finding as it was first made."""
    run: JudgedRun
    """The training call in which the problem was first found."""
    runs: int
    """How many training calls have the problem."""


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome."""

    runs: int
    """How many runs there were."""
    judged: int
    """How many training calls passed or failed; the others were not evaluated."""
    problems: tuple[Problem, ...]
    """Problems that are not among the known ones."""
    known: tuple[str, ...]
    """Keys of problems that were found and had been known before."""
    refused: tuple[str, ...]
    """Why some trainers were not audited."""
    unseen: tuple[str, ...]
    """Codes of rules that must have compared something in some run, and did in none."""

    @property
    def exit_status(self) -> int:
        """1 for a new problem; 2 where too little was looked at to pass; else 0."""
        if self.problems:
            return 1
        return 2 if self.unseen or not self.judged else 0


def key_of(finding: Finding) -> str:
    """What tells a problem from others."""
    digest = hashlib.sha256("\n".join(finding.kind).encode()).hexdigest()[:10]
    return f"{finding.code}:{finding.deviation or digest}"


def runs_of(suite: Suite, others: Iterable[Report]) -> list[JudgedRun]:
    """The training calls of a folder: those of tests, and those that no test made."""
    of_tests = [JudgedRun(test.name, True, report) for test in suite.tests for report in test.reports]
    return of_tests + [JudgedRun(report.run, False, report) for report in others]


def gate_of(
    runs: Sequence[JudgedRun],
    *,
    known: Collection[str],
    required: Iterable[str],
    strict: bool,
    refused: Iterable[str] = (),
) -> Gate:
    """Judge runs together.

    Args:
        runs: The runs.
        refused: Why trainers were not audited.
        known: Keys of problems that are known already.
        required: Codes of rules that must have compared something.
        strict: Whether warnings are problems too.
    """
    first: dict[str, tuple[Finding, JudgedRun]] = {}
    seen_in: dict[str, int] = {}
    for run in runs:
        found = {key_of(one): one for one in reversed(run.report.findings) if _counts(one, strict=strict)}
        for key, finding in reversed(found.items()):
            first.setdefault(key, (finding, run))
            seen_in[key] = seen_in.get(key, 0) + 1
    compared = {rule.code for run in runs for rule in run.report.rules if rule.verdict != "NOT_EVALUATED"}
    return Gate(
        runs=len(runs),
        judged=sum(run.report.verdict != "NOT_EVALUATED" for run in runs),
        problems=tuple(
            Problem(key=key, finding=finding, run=run, runs=seen_in[key])
            for key, (finding, run) in first.items()
            if key not in known
        ),
        known=tuple(key for key in first if key in known),
        refused=tuple(dict.fromkeys(refused)),
        unseen=tuple(code for code in dict.fromkeys(required) if code not in compared),
    )


def _counts(finding: Finding, *, strict: bool) -> bool:
    # What another finding explains is the same problem once more.
    return not finding.explained_by and (finding.severity == "error" or (strict and finding.severity == "warning"))
