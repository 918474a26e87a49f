"""The judge: feeds one process's events to the matcher and the rules as they come, in constant memory."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.judge.asked_rules import AskedRules
from rlstep_hooks.judge.causes import fold
from rlstep_hooks.judge.conformance import AS_PLANNED, NOTHING_PLANNED, Difference, matcher
from rlstep_hooks.judge.count_rows import explains_counts, unlike_plan
from rlstep_hooks.judge.delivery import Deliveries, Delivery
from rlstep_hooks.judge.deviations import DeviationsOf, none_known
from rlstep_hooks.judge.health import health_of
from rlstep_hooks.judge.lags import Lags
from rlstep_hooks.judge.readings import RunningReadings
from rlstep_hooks.judge.report import Counts, Report, Summary, ending_of
from rlstep_hooks.judge.rules import RANK_RULES, RULES
from rlstep_hooks.judge.rules.progress import Progress, remember
from rlstep_hooks.judge.timeline import position_of, start_of
from rlstep_hooks.judge.whole_numbers import PerRollout, WholeNumber, name_whole_number, whole_number
from rlstep_hooks.record.events import (
    AdapterUsed,
    AnyEvent,
    Carried,
    ConfigChanged,
    EpochEnd,
    Evaluated,
    FactsRead,
    KeysReused,
    Measured,
    MicroBatch,
    PassesEnded,
    Refresh,
    Rewarded,
    Rollout,
    RunEnded,
    RunStarted,
    TurnsJoined,
    Unobserved,
    Update,
    WeightsHeld,
    WeightsSent,
    WeightSync,
    never_seen,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.judge.conformance import Differences, Matcher
    from rlstep_hooks.judge.report import Ending
    from rlstep_hooks.judge.timeline import Position
    from rlstep_hooks.planning.finding import Finding, Verdict


class Judge:
    """Judges one process of one run.

    Args:
        deviations_of: The known deviations of its framework, which explain findings.
    """

    def __init__(self, deviations_of: DeviationsOf = none_known) -> None:
        self._deviations_of = deviations_of
        self._run: RunStarted | None = None
        self._asked = AskedRules()
        self._conformance: Matcher = NOTHING_PLANNED
        self._progress: Progress | None = None
        self._unobserved: dict[str, str] = {}
        self._matching: Matcher = NOTHING_PLANNED
        """The matcher; `NOTHING_PLANNED` once the order of events cannot be observed."""
        self._counts: dict[str, int] = defaultdict(int)
        self._lags = Lags()
        self._readings = RunningReadings()
        self._deliveries = Deliveries()
        self._per_rollout = PerRollout()
        self._ended: RunEnded | None = None
        self.differences: Differences = AS_PLANNED
        """What the matcher found at the latest event, for watchers: differences of this event, or of the event before it that
        only this one could explain."""
        self.age: int | None = None
        """Updates that the sampler's weights lagged behind the policy at the latest rollout; None if not observed."""

    @property
    def failed(self) -> bool:
        """Whether an error was found so far."""
        return self._asked.failed

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
    def rollout(self) -> int:
        """The current training rollout, counted from 0."""
        return max(self._progress.rollouts - 1, 0) if self._progress is not None else 0

    @property
    def compares(self) -> bool:
        """Whether the order of events is compared with a plan."""
        return self._matching is not NOTHING_PLANNED

    def position_before(self, rollout: Rollout) -> Position | None:
        """The position in the plan just before this rollout, the latest event; None if the order of events is not compared."""
        return self._matching.position_before(rollout)

    def take_heard(self, event: AnyEvent) -> list[AnyEvent]:
        """Events for those who follow the run: this event."""
        return [event]

    def observe(self, event: AnyEvent) -> list[Finding]:
        """Take one event.

        Returns:
            New findings.
        """
        self.differences = AS_PLANNED
        observe = _OBSERVE.get(type(event))
        if observe is None:
            return []
        if self._progress is not None:
            self._progress.events += 1
        return observe(self, event)

    # One function for each kind of event: count it, compare it with the plan, place it, show it to the rules.

    def _observe_rollout(self, event: Rollout) -> list[Finding]:
        if event.purpose == "training":
            self._counts["rollouts"] += 1
            self._counts["samples"] += event.samples
            self._per_rollout.rollout(event)
            self.age = _age(event)
            self._readings.add_rollout(event)
        else:
            self._counts["evaluation_rollouts"] += 1
        progress = self._progress
        if progress is None:
            return []
        findings: list[Finding] = []
        if event.purpose == "training":
            findings = self._claim(self._matching.rollout(event))
            progress.number_rollout(event.index)
        progress.open_rollouts[event.index] = event, progress.place
        progress.forget_waiting()
        return findings + self._show("rollout", event)

    def _observe_rewarded(self, event: Rewarded) -> list[Finding]:
        self._readings.add_rewarded(event)
        return self._show("rewarded", event)

    def _observe_turns_joined(self, event: TurnsJoined) -> list[Finding]:
        return self._show("turns_joined", event)

    def _observe_carried(self, event: Carried) -> list[Finding]:
        return self._show("carried", event) if event.compared else []

    def _observe_refresh(self, event: Refresh) -> list[Finding]:
        self._counts["old_logprob_refreshes"] += 1
        return self._show("refresh", event, self._matching.refresh(event))

    def _observe_microbatch(self, event: MicroBatch) -> list[Finding]:
        progress = self._progress
        # A critic has no ratio and no samples of its own; other rules check its order, counts and weights.
        if event.role == "critic":
            if progress is not None:
                remember(progress.open_of_critic, event.index, (event, progress.place))
            return self._show("critic_microbatch", event, self._match_critic(event))
        self._counts["microbatches"] += 1
        self._per_rollout.microbatch(event)
        if progress is None:
            return []
        progress.trained = True
        progress.open_microbatches[event.index] = event, progress.place
        progress.forget_waiting()
        return self._show("microbatch", event, self._matching.microbatch(event))

    def _observe_update(self, event: Update) -> list[Finding]:
        of_policy = event.role == "policy"
        if not event.applied:
            self._counts["skipped_updates"] += 1
        else:
            self._counts["updates" if of_policy else "critic_updates"] += 1
        progress = self._progress
        if progress is None:
            return []
        progress.open_updates[event.role, event.index] = event, progress.place
        progress.forget_waiting()
        if not of_policy:
            return self._show("critic_update", event, self._match_critic(event))
        self._readings.add_update(event)
        self._per_rollout.update(event)
        findings = self._show("update", event, self._matching.update(event))
        progress.count_update(applied=event.applied)
        return findings

    def _observe_sync(self, event: WeightSync) -> list[Finding]:
        self._counts["weight_syncs"] += 1
        planned = self._progress is not None and self._progress.schedule.syncs != "unseen"
        return self._show("weight_sync", event, self._matching.seldom(event) if planned else AS_PLANNED)

    def _observe_sent(self, event: WeightsSent) -> list[Finding]:
        if event.by_another:
            return self._show("gathered", event)
        return [found for delivery in self._deliveries.sent(event) for found in self._show("delivered", delivery)]

    def _observe_held(self, event: WeightsHeld) -> list[Finding]:
        return [found for delivery in self._deliveries.held(event) for found in self._show("delivered", delivery)]

    def _observe_adapter(self, event: AdapterUsed) -> list[Finding]:
        return self._show("adapter_used", event)

    def _observe_keys(self, event: KeysReused) -> list[Finding]:
        if event.stale and self._deliveries.same_policy(event):
            event = msgspec.structs.replace(event, stale=0)
        return self._show("keys_reused", event)

    def _observe_epoch_end(self, event: EpochEnd) -> list[Finding]:
        self._counts["data_epochs_ended"] += 1
        findings = self._claim(self._matching.seldom(event))
        if self._progress is not None:
            self._progress.end_epoch(event.epoch)
        return findings

    def _observe_evaluation(self, event: Evaluated) -> list[Finding]:
        self._counts["evaluations"] += 1
        findings = self._show("evaluated", event)
        if self._progress is not None:
            self._progress.evaluations += 1
        return findings

    def _observe_passes_ended(self, event: PassesEnded) -> list[Finding]:
        return self._show("passes_ended", event)

    def _observe_change(self, event: ConfigChanged) -> list[Finding]:
        return self._show("config_changed", event)

    def _observe_facts(self, event: FactsRead) -> list[Finding]:
        if self._progress is not None:
            self._progress.add_facts(event.facts)
        return []

    def _observe_unobserved(self, event: Unobserved) -> list[Finding]:
        if event.what not in self._unobserved:
            self._unobserved[event.what] = event.why
            self._subscribe()
        return []

    def _observe_end(self, event: RunEnded) -> list[Finding]:
        self._ended = event
        return self._show("ended", event, self._matching.seldom(event))

    def _observe_start(self, event: RunStarted) -> list[Finding]:
        if event.schedule is None:
            self._run = event
            return []
        schedule = event.schedule
        # A damaged plan or position may fail here; then no run was begun.
        progress = Progress(schedule, event)
        self._unobserved |= never_seen(event)
        start = position_of(schedule, start_of(event))
        conformance = matcher(schedule, start, rollouts_only=self.cannot_observe("updates"))
        progress.begin(rollouts=conformance.rollouts, epoch=conformance.where().epoch or 0)
        rules = [rule(progress) for rule in RULES]
        self._run, self._progress, self._conformance = event, progress, conformance
        deviations = self._deviations_of(schedule.framework, schedule.version)
        # In a damaged record a run may begin twice: what was found before stays.
        self._asked = AskedRules(rules, progress, deviations, self._asked)
        self._subscribe()
        return self._show("started", event)

    def _subscribe(self) -> None:
        """Ask only the rules, and compare only the order, that can be judged by what is observed."""
        self._asked.subscribe(self._unobserved)
        self._matching = NOTHING_PLANNED if self.cannot_observe("order") else self._conformance

    def _claim(self, differences: Differences) -> list[Finding]:
        """Let the rules claim differences from the plan."""
        self.differences = differences
        return [finding for difference in differences for finding in self._show("difference", difference)]

    def _match_critic(self, event: MicroBatch | Update) -> Differences:
        planned = self._progress is not None and self._progress.schedule.critic is not None
        return self._matching.observe(event) if planned else AS_PLANNED

    def _show(
        self, handler: str, shown: AnyEvent | Difference | Delivery, differences: Differences = AS_PLANNED
    ) -> list[Finding]:
        """Show an event with its differences from the plan, or a single difference, to the rules with this handler."""
        findings = self._claim(differences) if differences else []
        return findings + self._asked.show(handler, shown) if self._progress is not None else findings

    def _observe_measured(self, event: Measured) -> list[Finding]:
        progress = self._progress
        findings: list[Finding] = []
        if progress is None:
            return findings
        rollouts = []
        for rollout in event.rollouts:
            generated = progress.open_rollouts.pop(rollout.index, None)
            if generated is not None:
                self._readings.add_rollout_values(rollout)
                rollouts.append((rollout, *generated))
        updates = []
        for update in event.updates:
            made = progress.open_updates.pop((update.role, update.index), None)
            if made is not None:
                if update.role == "policy":
                    progress.remember(made[0].version, update)
                    self._readings.add_update_values(update)
                updates.append((update, *made))
        microbatches, of_critic = [], []
        versions = not self.cannot_observe("versions")
        for values in event.microbatches:
            if values.role == "critic":
                trained = progress.open_of_critic.pop(values.index, None)
                of_critic += [] if trained is None else [(values, *trained)]
                continue
            trained = progress.open_microbatches.pop(values.index, None)
            if trained is not None:
                if versions:
                    self._lags.add(values, trained[0])
                self._readings.add_microbatch(values, trained[0])
                microbatches.append((values, *trained))
        # In the order in which they were made: what an update did follows from its micro-batches.
        for handler, arrived in (
            ("rollout_values", rollouts),
            ("microbatch_values", microbatches),
            ("critic_microbatch_values", of_critic),
            ("update_values", updates),
        ):
            if arrived:
                findings += self._asked.show_each(handler, arrived)
        return findings

    def report(self) -> Report:
        """The judgement so far."""
        matched = self._conformance.matched
        outcomes = [rule.outcome(matched) for rule in self._asked.rules if not isinstance(rule, RANK_RULES)]
        schedule = self._run.schedule if self._run and not self.cannot_observe("plan") else None
        lags, readings = self._lags.result(), self._readings.result()
        not_evaluated = dict(self._unobserved)
        if schedule is not None:
            not_evaluated |= schedule.not_evaluated
        not_evaluated |= {o.code: o.reason for o in outcomes if o.verdict == "NOT_EVALUATED"}
        not_evaluated |= {o.code: f"looked at {o.part}" for o in outcomes if o.part}
        ending = ending_of(self._ended)
        broken_off = self._broken_off(ending)
        if broken_off:
            not_evaluated["end"] = broken_off
        findings = fold([found for rule in self._asked.rules for found in rule.findings()])
        number = self._whole_number() if findings else None
        report = Report(
            run=self._run.run if self._run else "",
            verdict="NOT_EVALUATED" if broken_off and self.verdict == "PASS" else self.verdict,
            findings=findings if number is None else name_whole_number(findings, number),
            counts=self.counts,
            counts_explained="" if number is None else str(number),
            stopped_by=self._ended.stopped_by if self._ended is not None else "",
            schedule=schedule,
            rules=outcomes,
            lags=lags,
            readings=readings,
            health=health_of(lags, readings, schedule),
            not_evaluated=not_evaluated,
            complete=self._ended is not None and self._ended.status == "completed",
            ending=ending,
            error=self._ended.error if self._ended is not None else "",
            updates_before=self._run.start_updates if self._run else 0,
            start=msgspec.json.decode(msgspec.json.encode(start_of(self._run)))
            if self._run
            else {},  # as a record has it
        )
        unlike = unlike_plan(report) if report.verdict == "PASS" and not explains_counts(report.findings) else ""
        return (
            report
            if not unlike
            else msgspec.structs.replace(
                report,
                verdict="NOT_EVALUATED",
                not_evaluated=not_evaluated | {"counts": f"the record has {unlike}, and no rule found where they part"},
            )
        )

    def _whole_number(self) -> WholeNumber | None:
        """The number that explains the counts, where the order of events was compared."""
        if self._run is None or self._run.schedule is None or not self.compares:
            return None
        return whole_number(self._per_rollout.each, self._run.schedule, self._run)

    def _broken_off(self, ending: Ending) -> str:
        """Why a run that did not reach its end cannot pass; empty if it can.

        A run that the user interrupted is judged up to the interrupt if it made an update. After an exception, the rest of the run was
        not observed.
        """
        if ending == "raised":
            assert self._ended is not None
            return f"training raised {self._ended.error}"
        if ending == "interrupted" and not self._counts["updates"]:
            return "training was interrupted before its first update"
        return ""

    def summary(self) -> Summary:
        """A short report of the run so far. Takes microseconds, because it does not visit all rules."""
        return Summary(
            verdict=self.verdict,
            problems=self._asked.problems,
            counts=self.counts,
            lags=self._lags.result(),
            age=self.age,
        )

    @property
    def verdict(self) -> Verdict:
        """The verdict so far."""
        if self.failed:
            return "FAIL"
        if self.cannot_observe("order") or not self._conformance.checks:
            return "NOT_EVALUATED"
        return "PASS"


_OBSERVE: dict[type, Callable[[Judge, Any], list[Finding]]] = {
    RunStarted: Judge._observe_start,
    Rollout: Judge._observe_rollout,
    Rewarded: Judge._observe_rewarded,
    TurnsJoined: Judge._observe_turns_joined,
    Carried: Judge._observe_carried,
    Refresh: Judge._observe_refresh,
    MicroBatch: Judge._observe_microbatch,
    Update: Judge._observe_update,
    WeightSync: Judge._observe_sync,
    WeightsSent: Judge._observe_sent,
    WeightsHeld: Judge._observe_held,
    AdapterUsed: Judge._observe_adapter,
    KeysReused: Judge._observe_keys,
    EpochEnd: Judge._observe_epoch_end,
    PassesEnded: Judge._observe_passes_ended,
    Evaluated: Judge._observe_evaluation,
    ConfigChanged: Judge._observe_change,
    FactsRead: Judge._observe_facts,
    Measured: Judge._observe_measured,
    Unobserved: Judge._observe_unobserved,
    RunEnded: Judge._observe_end,
}


def _age(rollout: Rollout) -> int | None:
    """Updates between the weights that sampled a rollout and the policy; None if the sampler's version was not observed."""
    sampler = rollout.sampler_version
    return None if sampler is None or sampler < 0 else rollout.policy_version - sampler
