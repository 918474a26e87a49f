"""The judge: feeds one process's events through the matcher and the rules, as they come, in constant memory."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from rlstep_hooks.conformance import Difference, OrderedEvent, matcher, observed_lag
from rlstep_hooks.deviations import Deviation, Evidence, explain, known_deviations
from rlstep_hooks.events import (
    AnyEvent,
    ConfigChanged,
    EpochEnd,
    Evaluated,
    FactsRead,
    Measured,
    MicroBatch,
    Refresh,
    Rollout,
    RunEnded,
    RunStarted,
    Unobserved,
    Update,
    WeightSync,
)
from rlstep_hooks.report import Counts, Finding, LagValues, Report, RuleOutcome, Summary, Verdict, Where
from rlstep_hooks.rules import RANK_RULES, RULES
from rlstep_hooks.rules.base import HANDLERS, Progress, Rule, disabled
from rlstep_hooks.timeline import position_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.conformance import Conformance, ConformanceOfRoles

OPEN_EVENTS = 65_536
"""Events of one kind that may wait for their numbers; more than any rollout has."""

_Item = TypeVar("_Item")
_Key = TypeVar("_Key")
_SEVERITIES = ("error", "warning", "info")

_HANDLER_OF = {
    Rollout: "rollout",
    Refresh: "refresh",
    MicroBatch: "microbatch",
    Update: "update",
    WeightSync: "weight_sync",
    Evaluated: "evaluated",
    ConfigChanged: "config_changed",
}


class _LagTotals:
    """Running totals of |log ratio| at one lag."""

    def __init__(self) -> None:
        self.microbatches = 0
        self.maximum = 0.0
        self.sum_of_means = 0.0
        self.clipped = 0.0
        self.clipped_seen = 0


class Judge:
    """Judges one process of one run."""

    def __init__(self) -> None:
        self._run: RunStarted | None = None
        self._rules: list[Rule] = []
        self._handlers: dict[str, list[tuple[Rule, Callable[..., Finding | None]]]] = {}
        self._deviations: tuple[Deviation, ...] = ()
        self._conformance: Conformance | ConformanceOfRoles | None = None
        self._progress: Progress | None = None
        self._unobserved: dict[str, str] = {}
        self._counts: dict[str, int] = defaultdict(int)
        self._lags: dict[int, _LagTotals] = defaultdict(_LagTotals)
        self._ended: RunEnded | None = None
        self._problems = 0
        self.failed = False
        """Whether an error was found so far."""
        self.age: int | None = None
        """Updates that the sampler's weights were behind the policy at the latest rollout; None where it cannot be seen."""

    @property
    def run(self) -> RunStarted | None:
        """The run's first event, once seen."""
        return self._run

    @property
    def ended(self) -> RunEnded | None:
        """The run's last event, once seen."""
        return self._ended

    @property
    def counts(self) -> Counts:
        """What was counted so far."""
        return Counts(**self._counts)

    def cannot_observe(self, *topics: str) -> bool:
        """Whether one of these topics cannot be observed in this process."""
        return any(topic in self._unobserved for topic in topics)

    @property
    def place(self) -> Where:
        """Where the run stands; empty where there is no plan."""
        return self._progress.where() if self._progress is not None else Where()

    def take_heard(self, event: AnyEvent) -> list[AnyEvent]:
        """What those who follow the run should hear now: the event itself."""
        return [event]

    def observe(self, event: AnyEvent) -> list[Finding]:
        """Take one event.

        Returns:
            Findings that this event brought up for the first time.
        """
        if isinstance(event, RunStarted):
            return self._start(event)
        if isinstance(event, Unobserved):
            self._note_unobserved(event.what, event.why)
            return []
        self._count(event)
        if isinstance(event, RunEnded):
            self._ended = event
        if self._progress is None:
            return []
        self._progress.events += 1
        if isinstance(event, FactsRead):
            self._progress.add_facts(event.facts)
            return []
        if isinstance(event, Measured):
            return self._measured(event)
        findings: list[Finding] = []
        if isinstance(event, OrderedEvent):
            findings += self._match(event)
        self._place(event)
        handler = _HANDLER_OF.get(type(event))
        # A critic has no ratio and no samples of its own; its order, its counts and its weights are looked at elsewhere.
        if handler and getattr(event, "role", "policy") == "policy":
            findings += self._call(handler, None, event)
        elif isinstance(event, Update):
            findings += self._call("critic_update", None, event)
        elif isinstance(event, MicroBatch):
            findings += self._call("critic_microbatch", None, event)
        if isinstance(event, RunEnded):
            findings += self._call("ended", None, event)
        self._advance(event)
        return findings

    def _start(self, event: RunStarted) -> list[Finding]:
        self._run = event
        if event.schedule is None:
            return []
        schedule = event.schedule
        self._progress = Progress(schedule, event)
        self._deviations = known_deviations(schedule.framework, schedule.version)
        stated = event.facts.get("position", {"updates": event.start_updates, "version": event.start_updates})
        start = position_of(schedule, stated)
        self._conformance = matcher(schedule, start)
        self._progress.epoch = self._conformance.where().epoch or 0
        self._progress.rollouts = self._conformance.rollouts
        self._rules = [rule(self._progress) for rule in RULES]
        self._handlers = {
            name: [
                (rule, getattr(rule, name))
                for rule in self._rules
                if getattr(type(rule), name) is not getattr(Rule, name)
            ]
            for name in HANDLERS
        }
        for what, why in self._unobserved.items():
            self._disable(what, why)
        return self._call("started", None, event)

    def _note_unobserved(self, what: str, why: str) -> None:
        if what not in self._unobserved:
            self._unobserved[what] = why
            self._disable(what, why)

    def _disable(self, what: str, why: str) -> None:
        for rule in self._rules:
            if what in rule.topics:
                disabled(rule, why)

    def _match(self, event: OrderedEvent) -> list[Finding]:
        if self._conformance is None or self._progress is None or self.cannot_observe("order"):
            return []
        if isinstance(event, Rollout) and event.purpose == "evaluation":
            return []
        schedule = self._conformance.schedule
        if isinstance(event, Update | MicroBatch) and event.role == "critic" and schedule.critic is None:
            return []
        if isinstance(event, WeightSync) and schedule.syncs == "unseen":
            return []
        differences = self._conformance.observe(event)
        if not differences:
            self._progress.matched[type(event)] += 1
            return []
        findings: list[Finding] = []
        for difference in differences:
            findings += self._call("difference", difference, difference)
        return findings

    def _call(self, handler: str, difference: Difference | None, *arguments: Any) -> list[Finding]:
        findings = []
        for rule, method in self._handlers[handler]:
            if rule.disabled:
                continue
            finding = method(*arguments)
            if finding is not None:
                findings.append(self._explain(rule, finding, difference))
        return findings

    def _explain(self, rule: Rule, finding: Finding, difference: Difference | None) -> Finding:
        explained = self._explained(rule, finding, difference)
        self.failed = self.failed or explained.severity == "error"
        self._problems += explained.severity != "info"
        return explained

    def _explained(self, rule: Rule, finding: Finding, difference: Difference | None) -> Finding:
        assert self._progress is not None  # rules exist only once there is a plan
        evidence = Evidence(finding, self._progress, difference)
        for deviation in self._deviations:
            if finding.code in deviation.codes and deviation.applies(evidence):
                explained = explain(finding, deviation)
                rule.replace(finding, explained)
                return explained
        return finding

    def _place(self, event: AnyEvent) -> None:
        """Keep what later numbers will belong to."""
        progress = self._progress
        if progress is None:
            return
        if isinstance(event, Rollout):
            if event.purpose == "training":
                progress.number_rollout(event.index)
            _keep(progress.open_rollouts, event.index, (event, progress.where()))
        elif isinstance(event, MicroBatch) and event.role == "policy":
            _keep(progress.open_microbatches, event.index, (event, progress.where(microbatch=event.index)))
        elif isinstance(event, Update):
            update = event.index if event.role == "policy" else None
            _keep(progress.open_updates, (event.role, event.index), (event, progress.where(update=update)))

    def _advance(self, event: AnyEvent) -> None:
        progress = self._progress
        if progress is None:
            return
        if isinstance(event, MicroBatch):
            progress.microbatches += event.role == "policy"
        elif isinstance(event, Update) and event.role == "policy":
            progress.updates += 1
            progress.applied += event.applied
        elif isinstance(event, Evaluated):
            progress.evaluations += 1
        elif isinstance(event, EpochEnd):
            progress.epoch = event.epoch

    def _measured(self, event: Measured) -> list[Finding]:
        progress = self._progress
        assert progress is not None  # the caller has looked
        findings: list[Finding] = []
        for rollout in event.rollouts:
            if rollout.index in progress.open_rollouts:
                findings += self._call("rollout_values", None, rollout, *progress.open_rollouts.pop(rollout.index))
        for update in event.updates:
            if (update.role, update.index) in progress.open_updates:
                made, where = progress.open_updates.pop((update.role, update.index))
                if update.role == "policy":
                    progress.remember(made.version, update)
                findings += self._call("update_values", None, update, made, where)
        for values in event.microbatches:
            if values.index in progress.open_microbatches:
                trained, where = progress.open_microbatches.pop(values.index)
                self._add_to_lag(values.max_abs_log_ratio, values.mean_abs_log_ratio, values.clipped, trained)
                findings += self._call("microbatch_values", None, values, trained, where)
        return findings

    def _add_to_lag(self, maximum: float | None, mean: float | None, clipped: float | None, event: MicroBatch) -> None:
        lag = observed_lag(event)
        if lag is None or maximum is None or mean is None:
            return
        totals = self._lags[lag]
        totals.microbatches += 1
        totals.maximum = max(totals.maximum, maximum)
        totals.sum_of_means += mean
        if clipped is not None:
            totals.clipped += clipped
            totals.clipped_seen += 1

    def _count(self, event: AnyEvent) -> None:
        counts = self._counts
        if isinstance(event, Rollout):
            if event.purpose == "training":
                counts["rollouts"] += 1
                counts["samples"] += event.samples
                self.age = _age(event)
            else:
                counts["evaluation_rollouts"] += 1
        elif isinstance(event, MicroBatch):
            counts["microbatches"] += event.role == "policy"
        elif isinstance(event, Update):
            if not event.applied:
                counts["skipped_updates"] += 1
            else:
                counts["updates" if event.role == "policy" else "critic_updates"] += 1
        elif isinstance(event, Refresh):
            counts["old_logprob_refreshes"] += 1
        elif isinstance(event, WeightSync):
            counts["weight_syncs"] += 1
        elif isinstance(event, Evaluated):
            counts["evaluations"] += 1
        elif isinstance(event, EpochEnd):
            counts["data_epochs_ended"] += 1

    def report(self) -> Report:
        """The judgement so far."""
        found = [item for rule in self._rules for item in rule.findings()]
        found.sort(key=lambda item: (_SEVERITIES.index(item[1].severity), item[0]))
        findings = [finding for _, finding in found]
        outcomes = [rule.outcome() for rule in self._rules if not isinstance(rule, RANK_RULES)]
        schedule = self._run.schedule if self._run else None
        not_evaluated = dict(self._unobserved)
        if schedule is not None:
            not_evaluated |= schedule.not_evaluated
        not_evaluated |= {o.code: o.reason for o in outcomes if o.verdict == "NOT_EVALUATED"}
        return Report(
            run=self._run.run if self._run else "",
            verdict=self.verdict,
            findings=findings,
            counts=self.counts,
            schedule=schedule,
            rules=outcomes,
            lags=self._lag_values(),
            not_evaluated=not_evaluated,
            complete=self._ended is not None and self._ended.status == "completed",
        )

    def summary(self) -> Summary:
        """What a report would say of the run so far, in short: some microseconds instead of a walk through all rules."""
        return Summary(
            verdict=self.verdict, problems=self._problems, counts=self.counts, lags=self._lag_values(), age=self.age
        )

    def _lag_values(self) -> list[LagValues]:
        return [
            LagValues(
                lag=lag,
                microbatches=totals.microbatches,
                max_abs_log_ratio=totals.maximum,
                mean_abs_log_ratio=totals.sum_of_means / totals.microbatches,
                clipped=totals.clipped / totals.clipped_seen if totals.clipped_seen else None,
            )
            for lag, totals in sorted(self._lags.items())
        ]

    @property
    def verdict(self) -> Verdict:
        """The verdict so far."""
        if self.failed:
            return "FAIL"
        if self._conformance is None or self.cannot_observe("order") or not self._conformance.checks:
            return "NOT_EVALUATED"
        return "PASS"


def _age(rollout: Rollout) -> int | None:
    """Updates between the weights that sampled a rollout and the policy; None where the sampler's version cannot be seen."""
    sampler = rollout.sampler_version
    return None if sampler is None or sampler < 0 else rollout.policy_version - sampler


def _keep(waiting: dict[_Key, _Item], index: _Key, item: _Item) -> None:
    """Add an event that waits for its numbers; the oldest goes if they never come."""
    waiting[index] = item
    if len(waiting) > OPEN_EVENTS:
        del waiting[next(iter(waiting))]


def merge_findings(report: Report, findings: list[Finding], outcomes: list[RuleOutcome], *, processes: int) -> Report:
    """A report with what the comparison of processes added."""
    merged = sorted([*report.findings, *findings], key=lambda finding: _SEVERITIES.index(finding.severity))
    verdict = "FAIL" if any(f.severity == "error" for f in findings) else report.verdict
    unknown = {o.code: o.reason for o in outcomes if o.verdict == "NOT_EVALUATED"}
    return msgspec.structs.replace(
        report,
        verdict=verdict,
        findings=merged,
        rules=[*report.rules, *outcomes],
        not_evaluated=report.not_evaluated | unknown,
        processes=processes,
    )
