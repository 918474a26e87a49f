"""Judges a controlled run: every trainer's stream by itself, then the trainers against each other."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.controlled.compose import TrainerPhases, TrainerStream
from rlstep_hooks.events import AnyEvent, Rollout, RunEnded, RunStarted, Unobserved
from rlstep_hooks.judge import Judge, merge_findings
from rlstep_hooks.ranks import listed, shape
from rlstep_hooks.report import Counts, Finding, Report, RuleOutcome, Where
from rlstep_hooks.rules.observation import ProcessMissing, RanksDisagree

if TYPE_CHECKING:
    from collections.abc import Callable

HEARD = 65_536
"""Events that wait for those who follow the run, at most; nobody may be following."""


class ControlledRun:
    """Judges the trainers of a run as the events of its controller come. Takes the place of a `Judge`.

    Args:
        phases_of: Gives a trainer's record by its rank.
    """

    def __init__(self, phases_of: Callable[[int], TrainerPhases]) -> None:
        self._phases_of = phases_of
        self._phases: list[TrainerPhases] = []
        self._streams: list[TrainerStream] = []
        self._judges: list[Judge] = []
        self._unobserved: list[Unobserved] = []
        self._since_rollout: list[list[str]] = []
        self._disagreement: Finding | None = None
        self._compared = 0
        self._rollout = 0
        self._heard: list[AnyEvent] = []

    @property
    def run(self) -> RunStarted | None:
        """The run's first event, once seen."""
        return self._judges[0].run if self._judges else None

    @property
    def ended(self) -> RunEnded | None:
        """The run's last event, once seen."""
        return self._judges[0].ended if self._judges else None

    @property
    def failed(self) -> bool:
        """Whether an error was found so far, on any trainer or between them."""
        return self._disagreement is not None or any(judge.failed for judge in self._judges)

    @property
    def counts(self) -> Counts:
        """What the first trainer counted so far."""
        return self._judges[0].counts if self._judges else Counts()

    def observe(self, event: AnyEvent) -> list[Finding]:
        """Take one event of the controller.

        Returns:
            Findings that it brought up for the first time, each with the rank of its trainer.
        """
        if isinstance(event, RunStarted) and not self._judges:
            self._phases = [self._phases_of(rank) for rank in range(event.world_size)]
            self._streams = [TrainerStream(rank, phases) for rank, phases in enumerate(self._phases)]
            self._judges = [Judge() for _ in self._streams]
            self._since_rollout = [[] for _ in self._streams]
        findings: list[Finding] = []
        rollout_seen = False
        for stream, judge, shapes in zip(self._streams, self._judges, self._since_rollout, strict=True):
            for composed in stream.feed(event):
                if isinstance(composed, Rollout | RunEnded):
                    rollout_seen = True
                shapes += filter(None, [self._shape(composed)])
                findings += [at_rank(found, stream.rank, len(self._judges)) for found in judge.observe(composed)]
                if stream.rank == 0 and len(self._heard) < HEARD:
                    self._heard.append(composed)
        if rollout_seen:
            findings += self._compare()
        return findings

    def take_heard(self, event: AnyEvent) -> list[AnyEvent]:
        """What those who follow the run should hear now: the first trainer's events that became complete."""
        events, self._heard = self._heard, []
        return events

    def _shape(self, event: AnyEvent) -> str:
        schedule = self._judges[0].run.schedule if self._judges[0].run is not None else None
        fixed = schedule is None or schedule.samples_per_microbatch is not None
        text = shape(event)
        # Where token counts cut the mini-batches, each trainer has its own micro-batches.
        return text if fixed or not text.startswith("micro-batch") else ""

    def _compare(self) -> list[Finding]:
        """Compare what the trainers did since the last rollout; the first difference of the run is reported."""
        first, *others = self._since_rollout
        findings = []
        for rank, shapes in enumerate(others, 1):
            self._compared += 1
            if shapes != first and self._disagreement is None and self._phases[rank].attached is not None:
                mine, theirs = next((m, t) for m, t in zip_longest(first, shapes, fillvalue="nothing") if m != t)
                self._disagreement = Finding(
                    code=RanksDisagree.code,
                    severity="error",
                    title=RanksDisagree.title,
                    expected=f"rank {rank} does what rank 0 does: {mine}",
                    observed=theirs,
                    where=Where(rollout=self._rollout, rank=rank),
                    why="data-parallel processes must take the same steps; gradients of different versions are averaged here",
                    fix=f"look at this rollout on ranks 0 and {rank}",
                )
                findings.append(self._disagreement)
        self._rollout = max(self.counts.rollouts - 1, 0)
        for shapes in self._since_rollout:
            shapes.clear()
        return findings

    def report(self) -> Report:
        """The judgement so far: the first trainer's, with what the others and their comparison add."""
        if not self._judges:
            return Report(
                verdict="NOT_EVALUATED", not_evaluated={"record": "the controller recorded no start of a run"}
            )
        report = self._judges[0].report()
        findings = self._findings_of_others(report)
        outcomes = [self._missing(findings), self._ranks(findings)]
        verdicts = {judge.report().verdict for judge in self._judges[1:]}
        if report.verdict == "PASS" and "NOT_EVALUATED" in verdicts:
            report = msgspec.structs.replace(report, verdict="NOT_EVALUATED")
        attached = sum(phases.attached is not None for phases in self._phases)
        return merge_findings(report, findings, outcomes, processes=attached + 1)

    def _findings_of_others(self, report: Report) -> list[Finding]:
        known = {finding.code for finding in report.findings}
        findings = []
        for rank, judge in enumerate(self._judges[1:], 1):
            of_rank = judge.report().findings
            findings += [at_rank(f, rank, len(self._judges)) for f in of_rank if f.code not in known]
            known |= {finding.code for finding in of_rank}
        return findings

    def _missing(self, findings: list[Finding]) -> RuleOutcome:
        code, title = ProcessMissing.code, ProcessMissing.title
        absent = [rank for rank, phases in enumerate(self._phases) if phases.attached is None]
        silent = [s.rank for s in self._streams if s.missed and s.rank not in absent]
        if not absent and not silent:
            return RuleOutcome(code=code, title=title, verdict="PASS", checks=len(self._streams))
        observed = []
        if absent:
            observed.append(f"no record of trainer {listed(absent)}")
        if silent:
            call = self._streams[silent[0]].missed[0]
            observed.append(f"trainer {listed(silent)} recorded nothing of call {call.number} of {call.name}")
        hint = self._judges[0].run.facts.get("attach_hint", "") if self._judges[0].run is not None else ""
        findings.append(
            Finding(
                code=code,
                severity="error",
                title=title,
                expected=f"records of {len(self._streams)} trainers, of every call",
                observed="; ".join(observed),
                where=Where(rank=(absent or silent)[0]),
                why="what a process did without a record cannot be judged",
                fix=str(hint) or "attach the audit in every process, and look at how that process ended",
            )
        )
        return RuleOutcome(code=code, title=title, verdict="FAIL", checks=len(self._streams))

    def _ranks(self, findings: list[Finding]) -> RuleOutcome:
        code, title = RanksDisagree.code, RanksDisagree.title
        if self._disagreement is not None:
            findings.append(self._disagreement)
            return RuleOutcome(code=code, title=title, verdict="FAIL", checks=self._compared)
        if len(self._streams) == 1:
            return RuleOutcome(code=code, title=title, verdict="NOT_EVALUATED", reason="one trainer", idle=True)
        return RuleOutcome(code=code, title=title, verdict="PASS", checks=self._compared)


def at_rank(finding: Finding, rank: int, world_size: int) -> Finding:
    """A finding with the rank of its trainer, where there are several."""
    if world_size == 1 or finding.where.rank is not None:
        return finding
    return msgspec.structs.replace(finding, where=msgspec.structs.replace(finding.where, rank=rank))
