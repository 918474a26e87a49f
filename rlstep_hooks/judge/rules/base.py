"""What a rule is: a class with a code and a title, whose docstring is its documentation page."""

from __future__ import annotations

from collections import OrderedDict, deque
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec

from rlstep_hooks.judge.outcome import RuleOutcome
from rlstep_hooks.judge.rules.precision import precision_class
from rlstep_hooks.planning.finding import LISTED_ROLLOUTS, Finding, Severity, Verdict, Where, kind_of
from rlstep_hooks.record.events import MicroBatch, Update

if TYPE_CHECKING:
    from collections import Counter

    from rlstep_hooks.judge.conformance import Difference
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.events import (
        ConfigChanged,
        Evaluated,
        MicroBatchValues,
        Refresh,
        Rewarded,
        Rollout,
        RolloutValues,
        RunEnded,
        RunStarted,
        UpdateValues,
        WeightSync,
    )

RECENT_UPDATES = 4096
"""Updates whose values are kept for comparison with later micro-batches; far above any lag a run has."""


WAITING = 65_536
"""Events that may wait for their numbers; more than any rollout has."""

Value = TypeVar("Value")

Place = tuple[int, int, int]
"""Where an event stood, in a form that costs little to keep: training rollouts begun by then, the number of the update under way,
the data epoch."""


class Progress:
    """What the judge knows of the run so far; shared by all rules and bounded in size."""

    def __init__(self, schedule: Schedule, started: RunStarted) -> None:
        self.schedule = schedule
        self.started = started
        self._read(started)
        self.events = 0
        self.rollouts = 0
        self.trained = False
        """Whether the policy was trained on a micro-batch."""
        self.updates = 0
        self.update = started.start_updates
        """Number of the next update in the whole run."""
        self.applied = 0
        self.evaluations = 0
        self.epoch = 0
        self.first_epoch = 0
        """The data epoch in which the run began."""
        self.place: Place = (0, self.update, 0)
        """Where the run stands."""
        self.open_microbatches: dict[int, tuple[MicroBatch, Place]] = {}
        self.open_updates: dict[tuple[str, int], tuple[Update, Place]] = {}
        self.open_rollouts: dict[int, tuple[Rollout, Place]] = {}
        self.update_values: dict[int, UpdateValues] = {}
        self._recent: deque[int] = deque()
        self._numbers: OrderedDict[int, int] = OrderedDict()

    def add_facts(self, facts: dict[str, Any]) -> None:
        """What the observer read from the run after it began."""
        self.started = msgspec.structs.replace(self.started, facts=self.started.facts | facts)
        self._read(self.started)

    def _read(self, started: RunStarted) -> None:
        self.compute_dtype = str(started.facts.get("compute_dtype", "unknown"))
        """The dtype of the model's forward, as torch names it; "unknown" where the observer did not say."""
        self.precision = precision_class(self.compute_dtype)
        """The class of its tolerances."""

    @property
    def resumed(self) -> bool:
        """Whether training began from a checkpoint."""
        return self.started.start_updates > 0

    def where(self, *, rollout: int | None = None, update: int | None = None, microbatch: int | None = None) -> Where:
        """A place in the run; numbers left out are those of now. Rollouts are training rollouts, counted from 0."""
        return Where(
            rollout=max(self.rollouts - 1, 0) if rollout is None else rollout,
            update=self.update if update is None else update,
            microbatch=microbatch,
            epoch=self._epoch(self.epoch),
            resumed=self.resumed and microbatch is not None,
        )

    def where_at(self, place: Place, event: Rollout | MicroBatch | Update) -> Where:
        """The place of an event in words that everybody reads."""
        rollouts, update, epoch = place
        of_policy = getattr(event, "role", "policy") == "policy"
        return Where(
            rollout=max(rollouts - 1, 0),
            update=event.index if isinstance(event, Update) and of_policy else update,
            microbatch=event.index if isinstance(event, MicroBatch) else None,
            epoch=self._epoch(epoch),
            resumed=self.resumed and isinstance(event, MicroBatch),
        )

    def _epoch(self, epoch: int) -> int | None:
        return epoch if self.schedule.has_data_epochs else None

    def begin(self, *, rollouts: int, epoch: int) -> None:
        """Begin where a run, which may be resumed, begins."""
        self.rollouts, self.epoch, self.first_epoch = rollouts, epoch, epoch
        self.place = rollouts, self.update, epoch

    def end_epoch(self, epoch: int) -> None:
        """Go on after so many passes of the loader."""
        self.epoch = epoch
        self.place = self.rollouts, self.update, epoch

    def count_update(self, *, applied: bool) -> None:
        """Go on by one update of the policy, or by one that was skipped."""
        self.updates += 1
        self.update += 1
        self.applied += applied
        self.place = self.rollouts, self.update, self.epoch

    def forget_waiting(self) -> None:
        """Keep no more than `WAITING` events for numbers that may never come: when there are more, the older half of each kind goes."""
        if len(self.open_rollouts) + len(self.open_microbatches) + len(self.open_updates) <= WAITING:
            return
        for waiting in (self.open_rollouts, self.open_microbatches, self.open_updates):
            _forget_older_half(waiting)

    def number_rollout(self, index: int) -> None:
        """Give the training rollout of this index its number."""
        self._numbers[index] = self.rollouts
        self.rollouts += 1
        self.place = self.rollouts, self.update, self.epoch
        if len(self._numbers) > RECENT_UPDATES:
            self._numbers.popitem(last=False)

    def rollout_number(self, index: int) -> int | None:
        """Which training rollout has this index, counted from 0; None for one of an evaluation."""
        return self._numbers.get(index)

    def remember(self, version: int, values: UpdateValues) -> None:
        """Keep the values of the update that made `version`."""
        self.update_values[version] = values
        self._recent.append(version)
        if len(self._recent) > RECENT_UPDATES:
            self.update_values.pop(self._recent.popleft(), None)


def _forget_older_half(waiting: dict[Any, Any]) -> None:
    for index in list(islice(waiting, len(waiting) // 2)):
        del waiting[index]


def remember(table: dict[int, Value], number: int, value: Value) -> None:
    """Keep something of an update or a rollout, and forget the oldest where a table would grow too long."""
    table[number] = value
    if len(table) > RECENT_UPDATES:
        del table[next(iter(table))]


class RolloutsWithSignal:
    """The latest training rollouts whose advantages are known to differ from 0, by number."""

    def __init__(self) -> None:
        self.numbers: dict[int, None] = {}
        self.any = False
        """Whether there ever was one."""

    def add(self, values: RolloutValues, event: Rollout, place: Place) -> None:
        """Look at the numbers of a rollout."""
        if event.purpose == "training" and values.max_abs_advantage:
            self.any = True
            remember(self.numbers, place[0] - 1, None)

    def forget_to(self, number: int) -> None:
        """Forget this rollout and those before it."""
        self.numbers = {later: None for later in self.numbers if later > number}


KINDS = 16
"""Findings of one variant that are told apart, at most; further ones count as repetitions of the last."""


class _Reported(msgspec.Struct):
    finding: Finding
    found_at: int
    """Events judged when it was found."""
    occurrences: int = 0
    rollouts: list[int] = []
    """Rollouts that it was seen in, each once."""

    latest: int | None = None
    """The latest of them."""

    def count(self, where: Where) -> None:
        """Count one occurrence."""
        self.occurrences += 1
        self.latest = where.rollout
        rollouts = self.rollouts
        if where.rollout is not None and len(rollouts) < LISTED_ROLLOUTS and where.rollout not in rollouts[-1:]:
            rollouts.append(where.rollout)

    def result(self) -> Finding:
        """The finding with all its occurrences."""
        rollouts = tuple(dict.fromkeys(self.rollouts)) if self.occurrences > 1 else ()
        return msgspec.structs.replace(self.finding, occurrences=self.occurrences, rollouts=rollouts)


class Rule:
    """One thing that must hold. Subclasses override the handlers of the events they look at."""

    code: ClassVar[str]
    title: ClassVar[str]
    severity: ClassVar[Severity] = "error"
    of_plan: ClassVar[bool] = False
    """Whether plan and settings alone show what it finds, so that no training is ended for it."""
    topics: ClassVar[tuple[str, ...]] = ()
    """What must be observable for this rule (`rlstep_hooks.record.events.TOPICS`)."""
    compares: ClassVar[tuple[type, ...]] = ()
    """Events whose match with the plan is a check of this rule."""
    nothing_seen: ClassVar[str] = "the run showed nothing that this rule compares"
    """The reason for NOT EVALUATED when the run never did what the rule looks at."""
    cannot_see: ClassVar[str] = "what this rule compares was not observed"
    """The reason for NOT EVALUATED when the run did that, and none of it could be looked at."""
    optional: ClassVar[bool] = False
    """Whether a run may have nothing at all of what the rule looks at, without anything being overlooked."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.schedule = progress.schedule
        self.checks = 0
        self.missed = 0
        """What it should have compared and could not look at."""
        self.disabled = ""
        self._reported: dict[tuple[str, str, str, str], _Reported] = {}

    def fail(
        self,
        *,
        expected: str,
        observed: str,
        why: str,
        fix: str,
        where: Where | None = None,
        severity: Severity | None = None,
        variant: str = "",
        degree: str = "",
    ) -> Finding | None:
        """Report a finding, or count it as a repetition of one.

        A repetition has the same variant, and the same difference but for its numbers and in the same degree. So has what else
        is seen in the same rollout: other sides of one fault.

        Returns:
            The finding, if it is the first of its kind.
        """
        where = where or self.progress.where()
        kind = variant, degree, kind_of(expected), kind_of(observed)
        reported = self._reported.get(kind) or self._other_side(variant, where)
        if reported is not None:
            if len(self._reported) < 4 * KINDS:
                self._reported[kind] = reported
            reported.count(where)
            return None
        finding = Finding(
            code=self.code,
            severity=severity or self.severity,
            title=self.title,
            expected=expected,
            observed=observed,
            where=where,
            why=why,
            fix=fix,
            planned=not self.progress.events,
        )
        reported = self._reported[kind] = _Reported(finding, self.progress.events)
        reported.count(where)
        return finding

    def _other_side(self, variant: str, where: Where) -> _Reported | None:
        """What a finding of a new kind is another side of; None where it is a fault of its own."""
        known = [reported for (of, *_), reported in self._reported.items() if of == variant]
        same = (reported for reported in known if reported.latest == where.rollout)
        return next(same, known[-1] if len(known) >= KINDS else None)

    def replace(self, before: Finding, after: Finding) -> None:
        """Put an explained finding in the place of a bare one."""
        for reported in self._reported.values():
            if reported.finding is before:
                reported.finding = after

    def findings(self) -> list[tuple[int, Finding]]:
        """Findings so far, with the number of occurrences, each after the number of events at which it was found."""
        distinct = {id(reported): reported for reported in self._reported.values()}
        return [(reported.found_at, reported.result()) for reported in distinct.values()]

    def outcome(self, matched: Counter[type]) -> RuleOutcome:
        """PASS, FAIL or NOT_EVALUATED with the reason.

        Args:
            matched: Events of each kind that came as planned.
        """
        checks = self.checked(matched)
        verdict: Verdict = "PASS"
        if any(r.finding.severity != "info" for r in self._reported.values()):
            verdict = "FAIL"
        elif self.disabled or not checks:
            verdict = "NOT_EVALUATED"
        unknown = verdict == "NOT_EVALUATED"
        return RuleOutcome(
            code=self.code,
            title=self.title,
            verdict=verdict,
            checks=checks,
            missed=self.missed if checks else 0,
            note=self.note() if checks else "",
            reason=self.disabled or self.reason() if unknown else "",
            idle=unknown and not self.disabled and self.absent(),
        )

    def checked(self, matched: Counter[type]) -> int:
        """How often the rule compared something."""
        return self.checks + sum(matched[kind] for kind in self.compares)

    def absent(self) -> bool:
        """Whether the run never did what the rule looks at, as far as the rule knows."""
        return self.optional or not self.missed

    def reason(self) -> str:
        """Why nothing was compared."""
        return self.nothing_seen if self.absent() else self.cannot_see

    def note(self) -> str:
        """What the checks rest on, where that is less than the title says."""
        return ""

    # Handlers. The judge calls only those that a subclass overrides.

    def started(self, event: RunStarted) -> Finding | None:
        """The run began; the plan is known."""

    def difference(self, difference: Difference) -> Finding | None:
        """The order or a size of an event is not as planned."""

    def rollout(self, event: Rollout) -> Finding | None:
        """A generation phase ended."""

    def rewarded(self, event: Rewarded) -> Finding | None:
        """Rewards and advantages of a rollout were compared."""

    def refresh(self, event: Refresh) -> Finding | None:
        """Old log-probs were computed."""

    def microbatch(self, event: MicroBatch) -> Finding | None:
        """A micro-batch was trained."""

    def update(self, event: Update) -> Finding | None:
        """An optimizer step was made or skipped."""

    def critic_update(self, event: Update) -> Finding | None:
        """An optimizer step of the critic was made or skipped."""

    def critic_microbatch(self, event: MicroBatch) -> Finding | None:
        """A micro-batch of the critic was trained."""

    def weight_sync(self, event: WeightSync) -> Finding | None:
        """Weights went to the rollout engine."""

    def evaluated(self, event: Evaluated) -> Finding | None:
        """An evaluation ended."""

    def config_changed(self, event: ConfigChanged) -> Finding | None:
        """A setting has another value than before."""

    def rollout_values(self, values: RolloutValues, event: Rollout, place: Place) -> Finding | None:
        """Numbers of a rollout arrived."""

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch, place: Place) -> Finding | None:
        """Numbers of a micro-batch arrived."""

    def update_values(self, values: UpdateValues, event: Update, place: Place) -> Finding | None:
        """Numbers of an update arrived."""

    def ended(self, event: RunEnded) -> Finding | None:
        """Training returned or raised."""


def disabled(rule: Rule, reason: str) -> None:
    """Mark a rule as not evaluated for the rest of the run; what it found before stays."""
    rule.disabled = rule.disabled or reason


HANDLERS = (
    "started",
    "difference",
    "rollout",
    "rewarded",
    "refresh",
    "microbatch",
    "update",
    "critic_update",
    "critic_microbatch",
    "weight_sync",
    "evaluated",
    "config_changed",
    "rollout_values",
    "microbatch_values",
    "update_values",
    "ended",
)
