"""Judges a controlled run: every trainer's stream by itself, then the trainers against each other."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.controlled.compose import TrainerPhases, TrainerStream
from rlstep_hooks.judge.controlled.joined import JoinedTrainers
from rlstep_hooks.judge.deviations import DeviationsOf, explained, none_known
from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.outcome import RuleOutcome
from rlstep_hooks.judge.ranks.disagreement import shape, why_it_matters
from rlstep_hooks.judge.ranks.outcomes import of_all_processes, only_of_others
from rlstep_hooks.judge.ranks.words import listed
from rlstep_hooks.judge.report import Counts, Report, Summary, merge_findings
from rlstep_hooks.judge.rules.observation import ProcessMissing, RanksDisagree
from rlstep_hooks.planning.finding import Finding, Verdict, Where
from rlstep_hooks.record.events import TOPICS, AnyEvent, MicroBatch, Phase, Rollout, RunEnded, RunStarted, Update

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.judge.watcher import Watcher
    from rlstep_hooks.planning.schedule import Schedule

MOST_TRAINERS = 2048
"""Trainers that are judged, each by itself, whether or not it has a record."""
HEARD = 65_536
"""Largest number of events kept for followers of the run, because there may be none to take them."""


class _Trainer:
    """One trainer of the run: its events, their judge, and what it did since trainers were last compared."""

    def __init__(self, rank: int, phases: TrainerPhases, deviations_of: DeviationsOf) -> None:
        self.rank = rank
        self.phases = phases
        self.stream = TrainerStream(rank, phases)
        self.judge = Judge(deviations_of)
        self.done: list[tuple[int, str]] = []
        """What must be the same on all trainers, in words, each entry with its rollout."""

    @property
    def recorded(self) -> bool:
        """Whether there is a record of every call so far."""
        return self.phases.attached is not None and not self.stream.missed

    @property
    def comparable(self) -> bool:
        """Whether everything that must be the same on all trainers was observed on this one."""
        return self.recorded and not self.judge.cannot_observe("order", "samples", "refresh")

    def observe(self, event: AnyEvent) -> list[Finding]:
        """Judge one event of this trainer."""
        findings = self.judge.observe(event)
        schedule = self.judge.run.schedule if self.judge.run is not None else None
        text = _common_shape(event, schedule)
        if text:
            self.done.append((self.rollout, text))
        return findings

    @property
    def rollout(self) -> int:
        """The current rollout, counted from 0."""
        return self.judge.rollout

    def take_done(self, *, ended: bool) -> list[tuple[int, str]]:
        """What was done in finished rollouts; the current rollout's record may still be incomplete."""
        now = self.rollout
        count = len(self.done) if ended else sum(1 for rollout, _ in self.done if rollout < now)
        done, self.done = self.done[:count], self.done[count:]
        return done


class ControlledRun:
    """Judges the trainers of a run as the events of its controller come. Has the interface of `Judge`.

    Args:
        phases_of: Gives the records of the trainer of a rank.
        deviations_of: The known deviations of the framework.
        watcher: Sees the events of all trainers.
    """

    def __init__(
        self,
        phases_of: Callable[[int], TrainerPhases],
        deviations_of: DeviationsOf = none_known,
        watcher: Watcher | None = None,
    ) -> None:
        self._phases_of = phases_of
        self._deviations_of = deviations_of
        self._watcher = watcher
        self._trainers: list[_Trainer] = []
        self._called = False
        """Whether the controller called its trainers."""
        self._disagreement: Finding | None = None
        self._compared = 0
        self._heard: list[AnyEvent] = []
        self._joined: JoinedTrainers | None = None
        """What several trainers gave to their gradients and hold; None until one of them has begun, and where there is one."""

    @property
    def run(self) -> RunStarted | None:
        """The run's first event, once seen."""
        return self._trainers[0].judge.run if self._trainers else None

    @property
    def ended(self) -> RunEnded | None:
        """The run's last event, once seen."""
        return self._trainers[0].judge.ended if self._trainers else None

    @property
    def failed(self) -> bool:
        """Whether an error was found so far, on a trainer or between trainers."""
        return (
            self._disagreement is not None
            or any(trainer.judge.failed for trainer in self._trainers)
            or any(finding.severity == "error" for finding in self._of_joined())
        )

    @property
    def counts(self) -> Counts:
        """The first trainer's counts so far."""
        return self._trainers[0].judge.counts if self._trainers else Counts()

    @property
    def age(self) -> int | None:
        """Age of the engine's oldest weights at the latest rollout, in updates; None if unknown."""
        return self._trainers[0].judge.age if self._trainers else None

    @property
    def verdict(self) -> Verdict:
        """The verdict so far; PASS only if all trainers pass."""
        if self.failed:
            return "FAIL"
        known = bool(self._trainers) and all(trainer.judge.verdict == "PASS" for trainer in self._trainers)
        return "PASS" if known else "NOT_EVALUATED"

    def summary(self) -> Summary:
        """A short report of the run so far."""
        return Summary.of(self.report(), age=self.age)

    def observe(self, event: AnyEvent) -> list[Finding]:
        """Take one event of the controller.

        Returns:
            New findings, each with the rank of its trainer.
        """
        if isinstance(event, RunStarted) and not self._trainers:
            if event.world_size > MOST_TRAINERS:
                raise ValueError(f"a controller with {event.world_size} trainers; {MOST_TRAINERS} can be judged")
            self._trainers = [
                _Trainer(rank, self._phases_of(rank), self._deviations_of) for rank in range(event.world_size)
            ]
        self._called = self._called or isinstance(event, Phase)
        findings: list[Finding] = []
        rollout_seen = False
        for trainer in self._trainers:
            for composed in trainer.stream.feed(event):
                rollout_seen = rollout_seen or isinstance(composed, Rollout | RunEnded)
                found = trainer.observe(composed)
                if self._watcher is not None:
                    self._watcher.watch(trainer.rank, composed, trainer.judge, found)
                findings += [at_rank(f, trainer.rank, len(self._trainers)) for f in found]
                findings += self._join(trainer.rank, composed)
                if trainer.rank == 0 and len(self._heard) < HEARD:
                    self._heard.append(composed)
        if rollout_seen:
            findings += self._compare(ended=isinstance(event, RunEnded))
        return findings

    def lacking(self, call: Phase) -> list[int]:
        """Trainers that lack, so far, the end of a returned call that they should have recorded."""
        return [trainer.rank for trainer in self._trainers if trainer.stream.lacks(call)]

    def take_heard(self, event: AnyEvent) -> list[AnyEvent]:
        """Events for those who follow the run: the first trainer's newly complete ones."""
        events, self._heard = self._heard, []
        return events

    def _join(self, rank: int, event: AnyEvent) -> list[Finding]:
        """Join an event of a trainer with those of the others, where there are others."""
        if len(self._trainers) == 1 or self.run is None:
            return []
        if self._joined is None:
            self._joined = JoinedTrainers(len(self._trainers), self.run)
        return explained(self._joined.take(rank, event), self.run, self._deviations_of)

    def _of_joined(self) -> list[Finding]:
        """What was found between trainers that reduce and hold the same."""
        if self._joined is None or self.run is None:
            return []
        return explained(self._joined.findings, self.run, self._deviations_of)

    def _compare(self, *, ended: bool) -> list[Finding]:
        """Compare what trainers did since the last comparison; only the run's first difference is reported."""
        findings = []
        done = {trainer.rank: trainer.take_done(ended=ended) for trainer in self._trainers}
        ranks = [trainer.rank for trainer in self._trainers if trainer.comparable]
        for rank in ranks[1:]:
            self._compared += 1
            if self._disagreement is None and done[rank] != done[ranks[0]]:
                self._disagreement = _disagreement(ranks[0], done[ranks[0]], rank, done[rank])
                findings.append(self._disagreement)
        return findings

    def report(self) -> Report:
        """The judgement so far: the first recorded trainer's, completed by the other trainers' and by their comparison."""
        if not self._trainers:
            return Report(
                verdict="NOT_EVALUATED", not_evaluated={"record": "the controller recorded no start of a run"}
            )
        first = next((trainer for trainer in self._trainers if trainer.recorded), self._trainers[0])
        reports = {trainer.rank: trainer.judge.report() for trainer in self._trainers}
        report = reports.pop(first.rank)
        of_others = only_of_others(report.findings, {rank: of.findings for rank, of in reports.items()})
        findings = [at_rank(finding, rank, len(self._trainers)) for rank, finding in of_others]
        if first.rank:
            own = [at_rank(finding, first.rank, len(self._trainers)) for finding in report.findings]
            report = msgspec.structs.replace(report, findings=own)
        findings += self._of_joined()
        report = msgspec.structs.replace(report, rules=of_all_processes(report.rules, findings, {}))
        outcomes = [self._missing(findings), self._ranks(findings), *self._outcomes_of_joined()]
        if report.verdict == "PASS" and any(other.verdict == "NOT_EVALUATED" for other in reports.values()):
            report = msgspec.structs.replace(report, verdict="NOT_EVALUATED")
        unknown = _unobserved_by_others(reports) | self._cut() | report.not_evaluated
        report = msgspec.structs.replace(report, not_evaluated=unknown)
        attached = [f"trainer {t.rank}" for t in self._trainers if t.phases.attached is not None]
        return merge_findings(report, findings, outcomes, processes=["controller", *attached])

    def _cut(self) -> dict[str, str]:
        """Records that end within a call, as in a run that raised."""
        trainers: dict[str, list[int]] = {}
        for trainer in self._trainers:
            for name, number in trainer.phases.cut:
                trainers.setdefault(f"call {number} of {name}", []).append(trainer.rank)
        parts = [f"the record of trainer {listed(ranks)} ends within {call}" for call, ranks in trainers.items()]
        return {"record": "; ".join(parts)} if parts else {}

    def _missing(self, findings: list[Finding]) -> RuleOutcome:
        code, title = ProcessMissing.code, ProcessMissing.title
        if not self._called:
            reason = "the controller made no call that trainers could have recorded"
            return RuleOutcome(code=code, title=title, verdict="NOT_EVALUATED", reason=reason, idle=True)
        absent = [t.rank for t in self._trainers if t.phases.attached is None and not t.stream.lost]
        silent = [trainer.rank for trainer in self._trainers if trainer.stream.missed and trainer.rank not in absent]
        if not absent and not silent:
            return RuleOutcome(code=code, title=title, verdict="PASS", checks=len(self._trainers))
        observed = []
        if absent:
            observed.append(f"no record of trainer {listed(absent)}")
        if silent:
            call = self._trainers[silent[0]].stream.missed[0]
            observed.append(f"trainer {listed(silent)} recorded nothing of call {call.number} of {call.name}")
        hint = self.run.facts.get("attach_hint", "") if self.run is not None else ""
        finding, outcome = ProcessMissing.missing(
            f"records of {len(self._trainers)} trainers, of every call",
            observed,
            rank=(absent or silent)[0],
            fix=str(hint) or "attach the audit in every process, and look at how that process ended",
            checks=len(self._trainers),
        )
        findings.append(finding)
        return outcome

    def _ranks(self, findings: list[Finding]) -> RuleOutcome:
        code, title = RanksDisagree.code, RanksDisagree.title
        if self._disagreement is not None:
            findings.append(self._disagreement)
            return RuleOutcome(code=code, title=title, verdict="FAIL", checks=self._compared)
        if not self._compared:
            reason = "one trainer" if len(self._trainers) == 1 else "no two trainers have records to compare"
            return RuleOutcome(code=code, title=title, verdict="NOT_EVALUATED", reason=reason, idle=True)
        return RuleOutcome(code=code, title=title, verdict="PASS", checks=self._compared)

    def _outcomes_of_joined(self) -> list[RuleOutcome]:
        if len(self._trainers) == 1:
            return []
        joined = self._joined or JoinedTrainers(len(self._trainers), self.run)
        absent = [trainer.rank for trainer in self._trainers if not trainer.recorded]
        return joined.outcomes(absent, ended=self.ended is not None)


def _common_shape(event: AnyEvent, schedule: Schedule | None) -> str:
    """What must be the same on all trainers, in words; empty if this event has nothing of it."""
    if schedule is not None and isinstance(event, MicroBatch | Update):
        plan = schedule.critic if event.role == "critic" else schedule
        if plan is not None and plan.samples_per_microbatch is None:
            # If token counts cut the mini-batches, each trainer has its own micro-batches.
            made = "update applied" if isinstance(event, Update) and event.applied else "update skipped"
            return made if isinstance(event, Update) else ""
    return shape(event)


def _disagreement(first: int, done: list[tuple[int, str]], rank: int, done_there: list[tuple[int, str]]) -> Finding:
    """The first difference between what two trainers did."""
    pairs = zip_longest(done, done_there, fillvalue=(-1, "nothing"))
    (rollout, mine), (rollout_there, theirs) = next((here, there) for here, there in pairs if here != there)
    return Finding(
        code=RanksDisagree.code,
        severity="error",
        title=RanksDisagree.title,
        expected=f"rank {rank} does what rank {first} does: {mine}",
        observed=theirs,
        where=Where(rollout=max(rollout, rollout_there), rank=rank),
        why=why_it_matters(mine, theirs),
        fix=f"look at this rollout on ranks {first} and {rank}",
    )


def _unobserved_by_others(reports: dict[int, Report]) -> dict[str, str]:
    """What other trainers could not observe, each with the first trainer's reason."""
    unknown: dict[str, str] = {}
    for rank, report in reports.items():
        for what in TOPICS:
            if what in report.not_evaluated:
                unknown.setdefault(what, f"rank {rank}: {report.not_evaluated[what]}")
    return unknown


def at_rank(finding: Finding, rank: int, world_size: int) -> Finding:
    """A finding with its trainer's rank, if there are several trainers."""
    if world_size == 1 or finding.where.rank is not None:
        return finding
    return msgspec.structs.replace(finding, where=msgspec.structs.replace(finding.where, rank=rank))
