"""The judge's report on a run, and its JSON form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rlstep_hooks.judge.causes import regroup
from rlstep_hooks.judge.health import HealthLine
from rlstep_hooks.judge.links import links_of
from rlstep_hooks.judge.outcome import RuleOutcome
from rlstep_hooks.judge.readings import LagValues as LagValues
from rlstep_hooks.judge.readings import Readings
from rlstep_hooks.judge.timeline import position_of, rollouts_before
from rlstep_hooks.planning.finding import Finding, Verdict
from rlstep_hooks.planning.schedule import Schedule
from rlstep_hooks.record.events import INTERRUPTED
from rlstep_hooks.record.wire import to_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlstep_hooks.record.events import RunEnded

Ending = Literal["", "completed", "stopped", "interrupted", "raised", "cut", "exported"]
"""How training ended: not yet; as planned; early, on request; by the user's interrupt; with an exception; with an incomplete record,
because the process was killed or still runs; or in a way that the export does not say which was read."""


def ends_training(findings: Iterable[Finding]) -> Finding | None:
    """The first finding for which "stop" and "raise" end training: an error about what happened.

    Findings that the plan and the settings alone show end no run: the user was told before it began, and training is healthy.
    """
    return next((found for found in findings if found.severity == "error" and not found.planned), None)


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """What was observed, on one process."""

    rollouts: int = 0
    samples: int = 0
    microbatches: int = 0
    updates: int = 0
    critic_updates: int = 0
    skipped_updates: int = 0
    old_logprob_refreshes: int = 0
    weight_syncs: int = 0
    evaluation_rollouts: int = 0
    evaluations: int = 0
    data_epochs_ended: int = 0


NAMED_PROCESSES = 8
"""Largest number of processes named in a report."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The judgement of one run."""

    run: str = ""
    verdict: Verdict
    findings: list[Finding] = []
    """The worst first; each headline is followed by the findings that it explains (`Finding.explained_by`)."""
    counts: Counts = Counts()
    counts_explained: str = ""
    """The whole number that alone explains the counts of all rollouts, such as "3 passes over each rollout instead of 4 passes over
    each rollout"; empty if they are as planned or none does."""
    stopped_by: str = ""
    """Code of the finding for which the audit itself ended training; "another process" if the finding was made there; empty if the
    audit did not end training."""
    schedule: Schedule | None = None
    rules: list[RuleOutcome] = []
    lags: list[LagValues] = []
    readings: Readings = Readings()
    """What was measured, on one process."""
    health: list[HealthLine] = []
    """Readings that are far outside of what published runs have. They change no verdict."""
    not_evaluated: dict[str, str] = {}
    """Everything that was not judged (a rule code, a quantity or a topic), with the reason."""
    complete: bool = False
    """Whether training reached its end; False for a killed or still running one."""
    ending: Ending = ""
    """How training ended."""
    error: str = ""
    """Type and text of the exception that ended training; empty if none did."""
    updates_before: int = 0
    """Updates made before this run, if it was resumed; the plan covers both."""
    start: dict[str, Any] = {}
    """The position in the plan at which the run began; empty for the start of training."""
    processes: int = 1
    """Number of processes with a record."""
    process_names: tuple[str, ...] = ()
    """Names of the first `NAMED_PROCESSES` of them; empty if there is only one."""

    @property
    def rollouts_before(self) -> int:
        """Rollouts of the plan that were made before this run, if it was resumed. Findings count rollouts from there on."""
        schedule = self.schedule
        return 0 if schedule is None else rollouts_before(schedule, position_of(schedule, self.start))

    def to_json(self, *, indent: int = 2) -> str:
        """The report as JSON, with the outcome of each link. Whole numbers are numbers, other fractions are texts such as "1/2",
        unknown values are null."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return to_json(fields | {"links": links_of(self.rules, self.findings)}, indent=indent).decode()

    def fails(self, *, strict: bool) -> bool:
        """Whether the run fails: on an error, and with `strict` also on a warning."""
        return any(f.severity == "error" or (strict and f.severity == "warning") for f in self.findings)

    def exit_status(self, *, strict: bool) -> int:
        """The exit status: 0 passed, 1 failed, 2 not evaluated (such as a run that broke off)."""
        if self.fails(strict=strict):
            return 1
        return 2 if self.verdict == "NOT_EVALUATED" else 0


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A short report that costs little at any moment."""

    verdict: Verdict
    problems: int = 0
    """Number of different errors and warnings."""
    counts: Counts = Counts()
    lags: list[LagValues] = []
    age: int | None = None
    """Updates between the weights that sampled the latest rollout (its oldest sample) and the policy that trains on it; None if not
    observed."""

    @classmethod
    def of(cls, report: Report, *, age: int | None) -> Summary:
        """The short form of a report."""
        problems = sum(finding.severity != "info" for finding in report.findings)
        return cls(verdict=report.verdict, problems=problems, counts=report.counts, lags=report.lags, age=age)


class StepAuditError(RuntimeError):
    """Raised out of training with `on_fail="raise"`; its text is the finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding

    def __reduce__(self) -> tuple[type[StepAuditError], tuple[Finding]]:
        """Keep the finding when the error crosses a process boundary."""
        return type(self), (self.finding,)


def merge_findings(
    report: Report, findings: list[Finding], outcomes: list[RuleOutcome], *, processes: list[str]
) -> Report:
    """A report with the results of comparing the named processes."""
    merged = regroup([*report.findings, *findings])
    verdict = "FAIL" if any(f.severity == "error" for f in findings) else report.verdict
    unknown = {o.code: o.reason for o in outcomes if o.verdict == "NOT_EVALUATED"}
    return msgspec.structs.replace(
        report,
        verdict=verdict,
        findings=merged,
        rules=[*report.rules, *outcomes],
        not_evaluated=report.not_evaluated | unknown,
        processes=len(processes),
        process_names=tuple(processes[:NAMED_PROCESSES]) if len(processes) > 1 else (),
    )


def ending_of(ended: RunEnded | None) -> Ending:
    """How training ended, according to its record."""
    if ended is None:
        return ""
    if ended.status == "completed":
        return "stopped" if ended.stopped else "completed"
    if ended.status == "exported":
        return "exported"
    kind = ended.error.partition(":")[0]
    return "interrupted" if INTERRUPTED in kind else "raised"
