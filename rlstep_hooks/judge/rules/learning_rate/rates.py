"""RLS6xx: the rate that each update uses, against the configured schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.judge.effects import STANDING_STILL, here, lasting
from rlstep_hooks.judge.learning_rate import RateSchedule, nearly, read_schedule
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.planning.finding import Where
from rlstep_hooks.record.events import RATE_SCHEDULE

if TYPE_CHECKING:
    from rlstep_hooks.judge.rules.progress import Progress
    from rlstep_hooks.record.events import ConfigChanged, RunEnded, Update

RELATIVE_ROUNDING = 1e-6
"""Difference of a rate, relative to the schedule's base, that rounding explains: both sides compute in double precision, and some
optimizers keep the rate in float32."""


_SET_BY_ANOTHER = "something other than the configured schedule sets the rate"
_LOOK_AT_SCHEDULER = (
    "look at what builds the scheduler, with which warm-up and arguments, and at what steps it besides the loop"
)
_LOOK_FOR_WRITERS = "look for code that writes into param_groups, and for schedulers that are made or loaded in mid-run"


class RateNotScheduled(Rule):
    """The learning rate of an update is not the one that the configured schedule gives.

    What it checks:
        The rate of each applied update, in each group of parameters. In TRL's GRPOTrainer and RLOOTrainer against the configured
        schedule (any of transformers that is a function of the updates), with the configured warm-up and arguments, at the number
        of updates made so far. Elsewhere against the schedule's formula as the scheduler was built and at its own position:
        constant, linear and cosine of transformers, with warm-up and with a smallest rate; constant and linear of
        Stable-Baselines3. A relative difference of one in a million is rounding.

    Why it matters:
        Something else sets the rate: a callback, a second scheduler, an optimizer that was made anew, an old checkpoint; or the
        scheduler was built without the warm-up, or with other arguments than the configured ones. Counts of ticks look right.

    Example:
        ERROR RLS605 Learning rate is not that of its schedule · data epoch 0,
        rollout 0, update 0 · 8 times, in rollouts 0 to 3
          expected  a rate of 1e-06 at tick 0 (constant)
          observed  0.01
          why       something other than the configured schedule sets the rate
          fix       look for code that writes into param_groups, and for schedulers
                    that are made or loaded in mid-run

    What to do:
        Look for code that writes into `param_groups`, and for schedulers that are made or loaded in mid-run.

    Known limits:
        - A function of somebody's is called once more for each rollout if its code shows that it only computes with numbers; any
          other is not.
        - The base rate is that of the optimizer, which may not be the configured one if a script made the optimizer itself.
        - Where a system is not said to compare each group of parameters alone, the largest rate of all groups is compared.
        - A scheduler that is built for another length than that of the run is RLS601's: it is compared with its own formula.
        - A scheduler that a script or a class of its own makes is compared with its own formula, where that is one of the above:
          what it should be is not in the configuration. One that follows a metric is not compared.
        - The first update after a resume is left out: it has the rate that the checkpoint holds, which is that of a shorter run
          where the resumed one is longer.

    Sources:
        - https://huggingface.co/docs/transformers/main_classes/optimizer_schedules: the schedules and their arguments
    """

    code = "RLS605"
    title = "Learning rate is not that of its schedule"
    topics = ("learning_rate",)
    nothing_seen = "the schedule is none whose formula is known, or its position cannot be read"
    optional = True
    produces = (here("RLS806"), lasting("RLS603"))

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._facts: dict[str, Any] | None = None
        self._schedule: RateSchedule | None = None
        self._before: RateSchedule | None = None
        """The schedule until it was changed: the rate of the next update may have been set before that, or after."""

    def absent(self) -> bool:
        """Whether the run has no schedule; one that nobody can compute is there all the same."""
        return super().absent() and not self.progress.started.facts.get("rates_unknown")

    def reason(self) -> str:
        """Why nothing was compared: what the observer says of the schedule, or that there is none."""
        return str(self.progress.started.facts.get("rates_unknown") or "") or super().reason()

    def config_changed(self, event: ConfigChanged) -> None:
        """Report a schedule that was changed in mid-run: legal, and seldom done without a reason."""
        if event.name != RATE_SCHEDULE:
            return
        before, after = (read_schedule({"lr_schedule": of}) for of in (event.before, event.after))
        self._before = before
        what = _changed(before, after)
        self.fail(
            severity="warning",
            expected=f"{what[0]}, as when training began",
            observed=what[1],
            why=f"{what[2]}, so the rates from here on follow it; they are compared with what it gives now",
            fix="nothing if a callback does this on purpose; otherwise look for code that changes the scheduler in mid-run",
            variant="schedule",
        )

    def update(self, event: Update) -> None:
        """Compare the rate with the schedule's."""
        facts = self.progress.started.facts
        if facts is not self._facts:  # a trainer's facts may come after those of the controller
            self._facts, self._schedule = facts, read_schedule(facts)
        schedule = self._schedule
        if not event.applied or event.learning_rate is None or (event.lr_tick is None and event.due_rate is None):
            return
        of_checkpoint = self.progress.resumed and event.index == self.progress.started.start_updates
        if event.role != "policy" or of_checkpoint:
            return
        if event.due_rate is not None and not self._built_for_another_length():
            self._compare_due(event, event.due_rate)
            return
        before, self._before = self._before, None
        if schedule is None or event.lr_tick is None:
            return
        if (
            before is not None
            and abs(event.learning_rate - before.rate(event.lr_tick)) <= RELATIVE_ROUNDING * before.base
        ):
            schedule = before
        self._compare(event, schedule.rate(event.lr_tick), schedule.base, schedule.kind)

    def _built_for_another_length(self) -> bool:
        """Whether the scheduler is built for another length than that of the run, which RLS601 reports: its rates then follow that
        length, and nothing is said twice."""
        horizon, ticks = self.progress.started.facts.get("lr_horizon"), self.schedule.lr_ticks
        return isinstance(horizon, int) and ticks is not None and not nearly(horizon, ticks)

    def _compare_due(self, event: Update, due: float) -> None:
        """Compare the rate of each group with the one that is due, and name the group that is farthest off."""
        configured = self.progress.started.facts.get("configured_schedule")
        if event.group_rates is None and event.due_group_rates is None:
            off, right, now, group = abs((event.learning_rate or 0.0) - due), due, event.learning_rate, None
        else:
            groups = max(len(event.group_rates or ()), len(event.due_group_rates or ()))
            rates = event.group_rates or (event.learning_rate or 0.0,) * groups
            planned = event.due_group_rates or (due,) * groups
            off, right, now, group = max(
                (abs(rate - wanted), wanted, rate, place)
                for place, (rate, wanted) in enumerate(zip(rates, planned, strict=False))
            )
        # Where a schedule ends at 0, its last rates are sums of larger numbers that were rounded.
        base = max(abs(due), self._schedule.base if configured and self._schedule is not None else 0.0)
        if self.holds(off <= RELATIVE_ROUNDING * base):
            return
        of_group = "" if group is None else f" in group {group}"
        by = f"{configured}, as configured" if configured else "a function of the run's own"
        why, fix = self._cause(event) if configured else (_SET_BY_ANOTHER, _LOOK_FOR_WRITERS)
        self.fail(
            expected=f"a rate of {right:.6g}{of_group} ({by})",
            observed=f"{now:.6g}" + (f", at tick {event.lr_tick} of the scheduler" if configured else ""),
            why=why,
            fix=fix,
        )

    def _cause(self, event: Update) -> tuple[str, str]:
        """Why a rate is not the configured one, and where to look."""
        if self._schedule is None:
            return (
                "the scheduler was not built as configured, or is not where the updates are, or something else sets the rate",
                f"{_LOOK_AT_SCHEDULER}; {_LOOK_FOR_WRITERS}",
            )
        if self._is_the_schedulers_own(event):
            own = "the scheduler itself gives this rate: it was not built as configured, or it is not where the updates are"
            return own, _LOOK_AT_SCHEDULER
        return _SET_BY_ANOTHER, _LOOK_FOR_WRITERS

    def _is_the_schedulers_own(self, event: Update) -> bool:
        """Whether a rate is the one that the live scheduler, as it was built, gives at its own position."""
        schedule = self._schedule
        if schedule is None or event.lr_tick is None or event.learning_rate is None:
            return False
        return abs(event.learning_rate - schedule.rate(event.lr_tick)) <= RELATIVE_ROUNDING * schedule.base

    def critic_update(self, event: Update) -> None:
        """Compare the rate of a critic that has a scheduler of its own."""
        schedule = read_schedule(self.progress.started.facts, "critic_lr_schedule")
        first_of_resumed = self.progress.resumed and not event.index
        if schedule is None or not event.applied or event.lr_tick is None or first_of_resumed:
            return
        self._compare(event, schedule.rate(event.lr_tick), schedule.base, schedule.kind)

    def _compare(self, event: Update, planned: float, base: float, kind: str) -> None:
        if event.learning_rate is None:
            return
        if self.holds(abs(event.learning_rate - planned) <= RELATIVE_ROUNDING * base):
            return
        of_policy = event.role == "policy"
        self.fail(
            expected=f"a rate of {planned:.6g}"
            + (f" at tick {event.lr_tick}" if event.lr_tick is not None else "")
            + f" ({kind})",
            observed=f"{event.learning_rate:.6g}{'' if of_policy else ', of the critic'}",
            why=_SET_BY_ANOTHER,
            fix=_LOOK_FOR_WRITERS,
            variant="" if of_policy else "critic",
        )


def _changed(before: RateSchedule | None, after: RateSchedule | None) -> tuple[str, str, str]:
    """What a schedule was, what it is now, and which of its parts was changed."""
    if before is None or after is None:
        was = "a scheduler whose formula is not known" if before is None else f"the configured schedule ({before.kind})"
        now = "one whose formula is not known" if after is None else f"a schedule of transformers ({after.kind})"
        return was, now, "the scheduler was replaced, or its function or base rate was changed"
    if msgspec.structs.replace(before, base=after.base) == after:
        was, now = f"a base rate of {before.base:.6g}", f"a base rate of {after.base:.6g}"
        return was, now, "the base rate of the scheduler (base_lrs) was changed"
    was, now = (f"{of.kind}, {of.horizon:g} ticks with {of.warmup} of warm-up" for of in (before, after))
    return f"the schedule {was}", f"the schedule {now}", "the scheduler was replaced, or its function was"


class RateAtZero(Rule):
    """The learning rate is zero while updates go on.

    What it checks:
        Updates with a learning rate of exactly 0 after one above 0. The first update of a warm-up may be 0; a schedule
        that comes back is not reported. A rate of 0 in every update of a run that came to its end is an error. Where
        the rate is set once a rollout, after it was sampled (Stable-Baselines3), a schedule that falls to 0 has reached
        it at the last rollout; that is information.

    Why it matters:
        Rollouts are generated, scored and trained without any effect.

    Example:
        WARNING RLS603 Learning rate at zero · data epoch 0, rollout 2, update 5
          expected  a learning rate above 0 while updates go on
          observed  exactly 0 in the last 3 of 8 updates (38 % of the run)
          why       these updates change nothing
          fix       build the schedule for the number of updates of the run, or give
                    it a floor

    What to do:
        Build the schedule for the number of updates of the run, or give it a floor.

    Known limits:
        - It reads the largest rate of the optimizer's groups: one that is kept still by a rate of 0 is not reported.
        - A rate that is tiny and not 0 is no finding: see RLS401 for updates that are lost in rounding.

    Sources:
        - https://github.com/alibaba/ROLL/issues/407: a learning rate of 0 from step 123 of 200
        - https://docs.pytorch.org/docs/stable/optim.html: schedulers of torch
    """

    code = "RLS603"
    title = "Learning rate at zero"
    severity = "warning"
    topics = ("learning_rate",)
    nothing_seen = "no update showed a learning rate"
    produces = (here(*STANDING_STILL),)

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._zeros = 0
        self._positive = False
        self._first_zero = Where()

    def update(self, event: Update) -> None:
        """Count trailing zeros."""
        if event.role != "policy" or event.learning_rate is None or not event.applied:
            return
        self.checks += 1
        if event.learning_rate > 0:
            self._positive, self._zeros = True, 0
        else:
            if not self._zeros:
                self._first_zero = self.progress.where(update=event.index)
            self._zeros += 1

    def ended(self, event: RunEnded) -> None:
        """Judge the zeros at the end of the run, or a run of zeros throughout."""
        if not self._zeros:
            return
        whole = event.status == "completed" and not event.stopped
        if not self._positive and not whole:
            return  # it may have ended within a warm-up, whose first updates may be at 0
        last = self.progress.where().rollout
        by_design = self.schedule.lr_clock == "rollout" and self._positive and self._first_zero.rollout == last
        if by_design:
            self.fail(
                severity="info",
                expected="a learning rate above 0 while updates go on",
                observed=f"exactly 0 in the {self._zeros} updates on the last rollout",
                where=self._first_zero,
                why="the rate is set after a rollout is sampled, so one that falls to 0 is there before the last rollout is trained",
                fix="nothing to fix in a long run; in a short one give the schedule a floor",
            )
            return
        share = round(100 * self._zeros / max(self.checks, 1))
        throughout = not self._positive and not self.progress.resumed
        self.fail(
            severity="error" if throughout else "warning",
            expected="a learning rate above 0 while updates go on",
            observed=f"exactly 0 in the last {self._zeros} of {self.checks} updates ({share} % of the run)",
            where=self._first_zero,
            why="no update of the run could change anything" if throughout else "these updates change nothing",
            fix=(
                "look at the configured learning rate, and at the scheduler that sets it"
                if throughout
                else "build the schedule for the number of updates of the run, or give it a floor"
            ),
        )
