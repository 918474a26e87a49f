"""What a rule is: a class with a code and a title, whose docstring is its documentation page."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from rlstep_hooks.judge.causes import Found
from rlstep_hooks.judge.effects import Effects
from rlstep_hooks.judge.outcome import RuleOutcome
from rlstep_hooks.planning.finding import LISTED_ROLLOUTS, Finding, Severity, Verdict, Where, kind_of
from rlstep_hooks.record.cadence import ALL_OF_FIRST

if TYPE_CHECKING:
    from collections import Counter

    from rlstep_hooks.judge.conformance import Difference
    from rlstep_hooks.judge.delivery import Delivery
    from rlstep_hooks.judge.rules.progress import Progress
    from rlstep_hooks.planning.token_row import TokenRow
    from rlstep_hooks.record.events import (
        AdapterUsed,
        Carried,
        ConfigChanged,
        Evaluated,
        KeysReused,
        MicroBatch,
        MicroBatchValues,
        PassesEnded,
        Refresh,
        Rewarded,
        Rollout,
        RolloutValues,
        RunEnded,
        RunStarted,
        TurnsJoined,
        Update,
        UpdateValues,
        WeightsSent,
        WeightSync,
    )


KINDS = 16
"""How many findings of one variant are told apart; a further one counts as a repetition of the last."""


class _Reported(msgspec.Struct):
    finding: Finding
    found_at: int
    """How many events had been judged when the finding was made."""
    occurrences: int = 0
    variant: str = ""
    produces: tuple[Effects, ...] = ()
    """What the cause of the finding brings about."""
    rollouts: list[int] = []
    """The rollouts in which the fault was seen, each once."""

    latest: int | None = None
    """The latest rollout in which the fault was seen."""

    def count(self, where: Where) -> None:
        """Count one occurrence."""
        self.occurrences += 1
        self.latest = where.rollout
        rollouts = self.rollouts
        if where.rollout is not None and len(rollouts) < LISTED_ROLLOUTS and where.rollout not in rollouts[-1:]:
            rollouts.append(where.rollout)

    def result(self, compared: int = 0) -> Finding:
        """The finding with all its occurrences, and the number of rollouts that were compared if these are not all."""
        rollouts = tuple(dict.fromkeys(self.rollouts)) if self.occurrences > 1 else ()
        return msgspec.structs.replace(
            self.finding, occurrences=self.occurrences, rollouts=rollouts, compared=compared if rollouts else 0
        )


NOTHING_MADE = "the run made no rollout and trained nothing"
"""The reason for NOT EVALUATED of all rules about a run that came to nothing."""


class Rule:
    """One thing that must hold. Subclasses override the handlers of the events they look at."""

    code: ClassVar[str]
    title: ClassVar[str]
    severity: ClassVar[Severity] = "error"
    seen_in: ClassVar[Literal["run", "plan", "plan and run"]] = "run"
    """What shows its findings: a run, a plan before anything runs, or both. No training is ended for what a plan shows."""
    report: ClassVar[str] = ""
    """Where somebody reported what it costs; each rule that looks at a plan has one."""
    topics: ClassVar[tuple[str, ...]] = ()
    """What must be observable for this rule (`rlstep_hooks.record.events.TOPICS`)."""
    compares: ClassVar[tuple[type, ...]] = ()
    """Kinds of events: each one that comes as planned counts as a check of this rule."""
    nothing_seen: ClassVar[str] = "the run showed nothing that this rule compares"
    """The reason for NOT EVALUATED when the run never did what the rule looks at."""
    cannot_see: ClassVar[str] = "what this rule compares was not observed"
    """The reason for NOT EVALUATED when the run did what the rule looks at, and the observer saw none of it."""
    produces: ClassVar[tuple[Effects, ...]] = ()
    """What the cause of its findings brings about: such findings are folded below them."""
    exact: ClassVar[bool] = True
    """Whether its warnings are certain; those of a rule with a tolerance are not."""
    optional: ClassVar[bool] = False
    """Whether a complete observation may hold nothing that this rule looks at."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Numbers of which a handler needs at least one, each as "microbatch_values.divergence": without any of them it does nothing, and
    the judge does not call it. A handler that is not named here is always called."""
    needed: ClassVar[dict[str, frozenset[str]]] = {}
    """What `needs` says, by handler."""
    handled: ClassVar[tuple[str, ...]] = ()
    """The handlers that it has a method of its own for."""

    def __init_subclass__(cls) -> None:
        cls.handled = tuple(name for name in HANDLERS if getattr(cls, name) is not getattr(Rule, name))
        pairs = [name.split(".") for name in cls.needs]
        cls.needed = {handler: frozenset(name for of, name in pairs if of == handler) for handler, _ in pairs}

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.schedule = progress.schedule
        self.checks = 0
        self.missed = 0
        """Comparisons that the rule should have made and could not, because something was not observed."""
        self.disabled = ""
        self._looked = self._looked_first = 0
        """Rollouts in which it compared something: all, and those among the first."""
        self.looked_at = 0
        """The latest rollout in which it compared something, counted from 1; 0 before the first."""
        self._reported: dict[tuple[str, str, str, str], _Reported] = {}
        self.fresh: list[Finding] = []
        """Findings that the judge has not taken yet: always the same list, which the judge empties."""

    @classmethod
    def planned(cls, *, expected: str, observed: str, why: str, fix: str, severity: Severity | None = None) -> Finding:
        """A finding of a launch that has no Schedule to look at, or needs none."""
        return Finding(
            code=cls.code,
            severity=severity or cls.severity,
            title=cls.title,
            expected=expected,
            observed=observed,
            where=Where(),
            why=why,
            fix=fix,
            planned=True,
        )

    def holds(self, right: bool | None) -> bool:
        """Count a comparison, and say whether it came out right; None, where nothing was compared, is no fault."""
        self.checks += right is not None
        return right is None or bool(right)

    def any_wrong(self, wrong: int | None) -> bool:
        """Count a comparison by how much of it is wrong, and say whether anything is; None where nothing was compared."""
        self.checks += wrong is not None
        return bool(wrong)

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
        produces: tuple[Effects, ...] | None = None,
        row: TokenRow | None = None,
    ) -> None:
        """Report a finding, or count it as a repetition of one.

        It is a repetition if the variant and the degree are the same and expected and observed differ in numbers only. Whatever
        else a variant shows in the same rollout counts as a repetition too, because one fault often shows in several ways.
        Its place is that of what the rule is shown, unless `where` names another. `produces` says what its cause brings about, where
        that is not what the rule says of all its findings. `row` is one that shows it.
        """
        where = where or self.progress.where_shown()
        kind = variant, degree, kind_of(expected), kind_of(observed)
        reported = self._reported.get(kind) or self._other_side(variant, where)
        if reported is not None:
            if len(self._reported) < 4 * KINDS:
                self._reported[kind] = reported
            reported.count(where)
            return
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
            row=row,
        )
        effects = self.produces if produces is None else produces
        reported = self._reported[kind] = _Reported(finding, self.progress.events, variant=variant, produces=effects)
        reported.count(where)
        self.fresh.append(finding)

    def _other_side(self, variant: str, where: Where) -> _Reported | None:
        """The known finding that a finding of a new kind belongs to; None if it is a fault of its own."""
        known = [reported for (of, *_), reported in self._reported.items() if of == variant]
        same = (reported for reported in known if reported.latest == where.rollout)
        return next(same, known[-1] if len(known) >= KINDS else None)

    def look(self, rollouts: int) -> None:
        """Count that it compared something in the latest of so many rollouts, a later one than it looked at before."""
        self.looked_at = rollouts
        self._looked += 1
        self._looked_first += rollouts - self.progress.rollouts_before <= ALL_OF_FIRST

    @property
    def sampled(self) -> bool:
        """Whether it compared something in the first rollouts, and in some of the later ones only, because an observer recomputes no
        more. A rule that finds something to compare in few rollouts of any run is not one."""
        later = self.progress.own_rollouts - ALL_OF_FIRST
        return (
            later > 0 and 2 * self._looked_first >= ALL_OF_FIRST and 4 * (self._looked - self._looked_first) < 3 * later
        )

    def replace(self, before: Finding, after: Finding) -> None:
        """Replace a finding by the same finding with an explanation."""
        for reported in self._reported.values():
            if reported.finding is before:
                reported.finding = after

    def findings(self) -> list[Found]:
        """The findings so far with their occurrences."""
        distinct = {id(reported): reported for reported in self._reported.values()}
        compared = self._looked if self.sampled else 0
        return [
            Found(
                finding=each.result(compared),
                at=each.found_at,
                variant=each.variant,
                produces=each.produces,
                exact=self.exact,
            )
            for each in distinct.values()
        ]

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
        not_compared, not_there = (self._declared(name) for name in ("not_compared", "not_there"))
        if verdict == "PASS" and (not_compared or not_there):
            verdict, checks = "NOT_EVALUATED", 0
        unknown = verdict == "NOT_EVALUATED"
        missed = self.missed if checks else 0
        why = self.disabled or not_compared or not_there or self.reason()
        return RuleOutcome(
            code=self.code,
            title=self.title,
            verdict=verdict,
            checks=checks,
            missed=missed,
            share=f"{self._looked} of {self.progress.own_rollouts} rollouts" if checks and self.sampled else "",
            of_plan=self.seen_in != "run",
            note=self.note() if checks else "",
            unproved=self._declared("not_proved") if verdict == "PASS" else "",
            reason=why if unknown else self.cannot_see if missed else "",
            idle=unknown and not self.disabled and not not_compared and (bool(not_there) or self.absent()),
        )

    def _declared(self, name: str) -> str:
        """What the system of this run declares of the rule under this name; empty if it says nothing."""
        declared = self.progress.started.facts.get(name)
        return str(declared.get(self.code, "")) if isinstance(declared, dict) else ""

    def checked(self, matched: Counter[type]) -> int:
        """The number of comparisons that the rule made."""
        return self.checks + sum(matched[kind] for kind in self.compares)

    def absent(self) -> bool:
        """Whether the run never did what the rule looks at."""
        return (self.optional or not self.missed) and not self._overdue()

    def _overdue(self) -> bool:
        """Whether the system declares that every run which trains gives the rule something to compare. Where nothing was compared all
        the same, something was not observed: a report has to say so, and may not take it for a run without what the rule looks at."""
        return bool(self.progress.rollouts and self.progress.trained and self._declared("in_every_run"))

    def reason(self) -> str:
        """Why nothing was compared."""
        if not self.absent() and (self.missed or not self._overdue()):
            return self.cannot_see
        # What the run did not come to says nothing of its plan, of its settings, or of what the observer can see.
        nothing_made = self.seen_in == "run" and not self.optional and not self.progress.rollouts
        return NOTHING_MADE if nothing_made and not self.progress.trained else self.nothing_seen

    def note(self) -> str:
        """What limits the checks to less than the title says; empty if nothing does."""
        return ""

    # Handlers. The judge calls only those that a subclass overrides.

    def started(self, event: RunStarted) -> None:
        """The run began; the plan is known."""

    def difference(self, difference: Difference) -> None:
        """The order or a size of an event is not as planned."""

    def rollout(self, event: Rollout) -> None:
        """A generation phase ended."""

    def rewarded(self, event: Rewarded) -> None:
        """Rewards and advantages of a rollout were compared."""

    def turns_joined(self, event: TurnsJoined) -> None:
        """The rows of a rollout were compared with the turns that agent loops sampled for them."""

    def carried(self, event: Carried) -> None:
        """Samples of a rollout were carried from one place to the next, and compared."""

    def refresh(self, event: Refresh) -> None:
        """Old log-probs were computed."""

    def microbatch(self, event: MicroBatch) -> None:
        """A micro-batch was trained."""

    def update(self, event: Update) -> None:
        """An optimizer step was made or skipped."""

    def critic_update(self, event: Update) -> None:
        """An optimizer step of the critic was made or skipped."""

    def critic_microbatch(self, event: MicroBatch) -> None:
        """A micro-batch of the critic was trained."""

    def weight_sync(self, event: WeightSync) -> None:
        """Weights went to the rollout engine."""

    def delivered(self, delivery: Delivery) -> None:
        """Look at a weight sync of which both sides are known."""

    def gathered(self, event: WeightsSent) -> None:
        """Weights were gathered with this process's part, and another process handed them over."""

    def adapter_used(self, event: AdapterUsed) -> None:
        """An engine that was given an adapter has run requests."""

    def keys_reused(self, event: KeysReused) -> None:
        """Requests entered an engine after a sync, and some may have taken keys from its prefix cache."""

    def evaluated(self, event: Evaluated) -> None:
        """An evaluation ended."""

    def passes_ended(self, event: PassesEnded) -> None:
        """The passes over a rollout ended early."""

    def config_changed(self, event: ConfigChanged) -> None:
        """A setting has another value than before."""

    def rollout_values(self, values: RolloutValues, event: Rollout) -> None:
        """Numbers of a rollout arrived."""

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Numbers of a micro-batch arrived."""

    def critic_microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Numbers of a micro-batch of the critic arrived."""

    def update_values(self, values: UpdateValues, event: Update) -> None:
        """Numbers of an update arrived."""

    def ended(self, event: RunEnded) -> None:
        """Training returned or raised."""


def disabled(rule: Rule, reason: str) -> None:
    """Mark a rule as not evaluated for the rest of the run; what it found before stays."""
    rule.disabled = rule.disabled or reason


HANDLERS = (
    "started",
    "difference",
    "rollout",
    "rewarded",
    "turns_joined",
    "carried",
    "refresh",
    "microbatch",
    "update",
    "critic_update",
    "critic_microbatch",
    "weight_sync",
    "delivered",
    "gathered",
    "adapter_used",
    "keys_reused",
    "evaluated",
    "config_changed",
    "passes_ended",
    "rollout_values",
    "microbatch_values",
    "critic_microbatch_values",
    "update_values",
    "ended",
)
