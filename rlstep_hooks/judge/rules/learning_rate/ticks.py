"""RLS6xx: how often the schedule of the learning rate moves, and how many ticks it is built for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.effects import here, lasting
from rlstep_hooks.judge.learning_rate import nearly
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.planning.words import number

if TYPE_CHECKING:
    from rlstep_hooks.judge.rules.progress import Progress
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.events import RunStarted, Update
    from rlstep_hooks.record.values import Role


class ScheduleHorizon(Rule):
    """The learning-rate schedule is built for another number of ticks than the run takes.

    What it checks:
        The horizon that the live scheduler was built for equals the ticks of the plan. Integers, compared exactly; a difference
        of less than 5 % of the run is said as information.

    Why it matters:
        Too short, and the learning rate is at its end while training goes on (ROLL#407: 38 % of the run at zero). Too
        long, and the run stops with a learning rate far from its end.

    Example:
        ERROR RLS601 Learning-rate schedule does not fit the length of training ·
        the whole run
          expected  a horizon of 40 ticks, one for each update
          observed  horizon 24: the last 16 ticks (40 % of the run) are past its end
          why       the schedule counts another unit than the run, or the run is
                    shorter than planned
          fix       build the scheduler for 40 ticks

    What to do:
        Build the scheduler for the number of ticks that the finding names.

    Known limits:
        - The horizon is read from the scheduler itself where it keeps one, as the schedules of transformers do. A
          scheduler of your own may not tell; then the plan's horizon counts, or it is not evaluated.
        - A constant learning rate has no horizon.

    Sources:
        - https://github.com/alibaba/ROLL/issues/407: a learning rate of 0 for 38 % of the run
        - https://github.com/NovaSky-AI/SkyRL/issues/872: a horizon in another unit
        - https://github.com/OpenRLHF/OpenRLHF/pull/986: factors that the horizon forgot
    """

    code = "RLS601"
    seen_in = "plan and run"
    report = "https://github.com/alibaba/ROLL/issues/407"
    title = "Learning-rate schedule does not fit the length of training"
    topics = ("learning_rate",)
    nothing_seen = "the learning rate is constant, or the length of the run or of the schedule is not known"
    produces = (lasting("RLS602", "RLS603", "RLS605"),)

    def started(self, event: RunStarted) -> None:
        """Compare horizon and ticks."""
        horizon = event.facts.get("lr_horizon", self.schedule.lr_horizon)
        ticks = self.schedule.lr_ticks
        if horizon is None or ticks is None or event.facts.get("lr_constant"):
            return
        if self.holds(horizon == ticks):
            return
        if horizon < ticks:
            share = round(100 * (ticks - horizon) / ticks)
            observed = f"horizon {horizon}: the last {ticks - horizon} ticks ({share} % of the run) are past its end"
        else:
            observed = f"horizon {horizon}: the run ends {horizon - ticks} ticks before it"
        near = nearly(horizon, ticks)
        self.fail(
            expected=f"a horizon of {ticks} ticks, one for each {self.schedule.lr_clock}",
            observed=observed,
            why="the schedule counts another unit than the run, or the run is shorter than planned",
            fix="nothing, for so few ticks" if near else f"build the scheduler for {ticks} ticks",
            severity="info" if near else None,
        )


class SchedulerTicks(Rule):
    """The learning-rate scheduler does not tick once for each update.

    What it checks:
        The scheduler's position advances by exactly one from one update to the next. In frameworks whose scheduler
        ticks once for each rollout: from the updates of one rollout to those of the next. So does that of a critic that has one.

    Why it matters:
        Two ticks for an update end the schedule at half of the run. None keeps the rate of the warm-up for ever.

    Example:
        ERROR RLS602 Learning-rate scheduler does not follow the updates · data
        epoch 0, rollout 3, update 7
          expected  1 scheduler tick between two updates of one rollout
          observed  2 ticks
          why       the learning rate follows another clock than the updates
          fix       look for a second call of the scheduler, or for one that is
                    missing

    What to do:
        Look for a second call of the scheduler (a callback, or a wrapper that also steps it), or for one that is
        missing.

    Known limits:
        - A scheduler that follows a metric (reduce_lr_on_plateau, greedy) ticks at evaluations: there it is not evaluated.

    Sources:
        - https://github.com/volcengine/verl/issues/399: what a tick of verl's scheduler follows
        - https://docs.pytorch.org/docs/stable/optim.html: one call of scheduler.step() for each tick
        - https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation: a scheduler that ticks with the optimizer only
    """

    code = "RLS602"
    title = "Learning-rate scheduler does not follow the updates"
    topics = ("learning_rate",)
    nothing_seen = "the scheduler keeps no count of its ticks, or follows a metric and not the updates"
    produces = (here("RLS602"), lasting("RLS601", "RLS603", "RLS605"))

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._latest: dict[Role, tuple[int | None, int]] = {}
        """The position at the latest update of each role, and the rollout of that; None where it was not applied."""

    def update(self, event: Update) -> None:
        """Compare the position of the policy's scheduler with that of the update before."""
        self._compare(event, self.schedule)

    def critic_update(self, event: Update) -> None:
        """Compare the position of the critic's scheduler, where the critic has a schedule of its own."""
        if self.schedule.critic is not None and "critic_lr_schedule" in self.progress.started.facts:
            self._compare(event, self.schedule.critic)

    def _compare(self, event: Update, schedule: Schedule) -> None:
        if event.lr_tick is None or schedule.lr_clock not in ("update", "rollout"):
            return
        now, of_critic = self.progress.rollouts, event.role == "critic"
        last, rollout = self._latest.get(event.role, (None, now))
        self._latest[event.role] = (event.lr_tick if event.applied else None, now)
        if last is None or not event.applied:
            return
        same_rollout = rollout == now
        ticks = event.lr_tick - last
        planned = 0 if same_rollout and schedule.lr_clock == "rollout" else 1
        if self.holds(ticks == planned):
            return
        self.fail(
            expected=f"{planned} scheduler tick{'s' if planned != 1 else ''} between two updates of "
            + ("one rollout" if same_rollout else "two rollouts"),
            observed=number(ticks, "ticks") + (" of the critic's" if of_critic else ""),
            why="the learning rate follows another clock than the updates",
            fix="look for a second call of the scheduler, or for one that is missing",
            variant="critic" if of_critic else "",
        )


class WarmupLength(Rule):
    """The learning rate is still warming up when the run ends.

    What it checks:
        The warm-up that the live scheduler was built with is shorter than the ticks of the plan. Integers.

    Why it matters:
        The configured learning rate is never reached. The whole run trains at a fraction of it (maxtext PR#4225: a
        warm-up of 15 000 on a run of 500).

    Example:
        WARNING RLS604 Learning-rate warm-up as long as the run · the whole run
          expected  a warm-up shorter than the 40 updates of the run
          observed  a warm-up of 500 ticks
          why       the learning rate never reaches its configured value
          fix       give the warm-up as a share of the run, or in updates

    What to do:
        Give the warm-up as a share of the run (`warmup_ratio`), or in the unit of the run.

    Known limits:
        - It knows warm-ups that a setting names. A warm-up within a scheduler of your own is not seen.

    Sources:
        - https://github.com/AI-Hypercomputer/maxtext/pull/4225: a warm-up of 15 000 steps on a run of 500
        - https://github.com/hiyouga/LLaMA-Factory/issues/424: warm-up steps in another unit
    """

    code = "RLS604"
    seen_in = "plan and run"
    report = "https://github.com/AI-Hypercomputer/maxtext/pull/4225"
    title = "Learning-rate warm-up as long as the run"
    severity = "warning"
    topics = ("learning_rate",)
    nothing_seen = "the schedule has no warm-up, or the length of the run is not known"

    def started(self, event: RunStarted) -> None:
        """Compare warm-up and ticks."""
        warmup, ticks = event.facts.get("lr_warmup"), self.schedule.lr_ticks
        if not warmup or not ticks:
            return
        if not self.holds(warmup < ticks):
            self.fail(
                expected=f"a warm-up shorter than the {ticks} updates of the run",
                observed=f"a warm-up of {warmup} ticks",
                why="the learning rate never reaches its configured value",
                fix="give the warm-up as a share of the run, or in updates",
            )


class RateFollowsRollouts(Rule):
    """The learning-rate schedule counts rollouts, while each rollout makes several updates.

    What it checks:
        What one tick of the scheduler follows, where the rate is not constant.

    Why it matters:
        Warm-up and decay that you give in updates last several times longer than meant (verl#399). The other way round
        the rate is at its end early (SkyRL#872).

    Example:
        INFO RLS610 The learning rate counts rollouts, not updates · the whole run
          observed  one tick for each rollout, and 4 updates for each rollout
          why       the framework steps its scheduler once a rollout
          fix       give warm-up and length in rollouts

    What to do:
        Give warm-up and length in the unit that the finding names.

    Known limits:
        - It is how the framework works, so it is information.

    Sources:
        - https://github.com/volcengine/verl/issues/399: a training step is one rollout
        - https://github.com/NovaSky-AI/SkyRL/issues/872: batches instead of optimizer steps
    """

    code = "RLS610"
    title = "The learning rate counts rollouts, not updates"
    severity = "info"
    seen_in = "plan"
    report = "https://github.com/volcengine/verl/issues/399"

    def started(self, event: RunStarted) -> None:
        """Look at the clock of the schedule."""
        schedule = self.schedule
        if schedule.lr_clock == "update" or schedule.updates_per_rollout == 1 or event.facts.get("lr_constant", True):
            return
        self.fail(
            expected="one tick for each update, as most schedules are meant",
            observed=f"one tick for each {schedule.lr_clock}, and {schedule.updates_per_rollout} updates for each rollout",
            why=f"the framework steps its scheduler once a {schedule.lr_clock}",
            fix=f"give warm-up and length in {schedule.lr_clock}s",
        )
