"""How updates, checkpoints and evaluations fall into the cycle of rollouts."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.planning.words import number

if TYPE_CHECKING:
    from rlstep_hooks.record.events import RunStarted


class ClipNeverActs(Rule):
    """The ratio is 1 by construction, so the clip can never act.

    What it checks:
        Every micro-batch of the plan has lag 0: the weights that train on a sample are the weights that computed its
        old log-probs.

    Why it matters:
        The ratio is then exactly 1 and `clip_ratio` is 0. With normalised advantages the loss in the logs reads 0,
        although its gradient is not 0. This is the default of GRPO in TRL, and it is correct: a plain on-policy policy
        gradient (trl#2703, trl#3452). The rule reports it so that nobody searches for a bug, or relies on a clip that
        does nothing.

    Example:
        INFO RLS102 Ratio is 1 by construction · the whole run
          observed  lag 0 only, 1 update for each rollout
          why       the ratio is 1 on every token, so clipping never acts and a loss
                    near 0 in the logs is cosmetic
          fix       nothing to fix; num_iterations above 1, or steps_per_generation
                    above gradient_accumulation_steps, would make clipping act

    What to do:
        Nothing, if you want on-policy updates. For several updates on each rollout, raise the number of reuse epochs,
        or make a rollout larger than an update.

    Known limits:
        - The rule looks at the plan, not at measured ratios: RLS301, RLS302 and RLS310 do that.
        - It says nothing where old log-probs come from the rollout engine, because the ratio then also corrects the
          distance between engine and trainer.
        - It says nothing where samples may be older than the weights that train on them: RLS117 does.

    Sources:
        - https://github.com/huggingface/trl/issues/2703: why the loss starts at 0
        - https://github.com/huggingface/trl/issues/3452: the loss of 0 in the logs is cosmetic
        - https://huggingface.co/docs/trl/grpo_trainer: the loss of GRPO with one update on each rollout
    """

    code = "RLS102"
    seen_in = "plan and run"
    report = "https://github.com/huggingface/trl/issues/2703"
    title = "Ratio is 1 by construction"
    severity = "info"

    def started(self, event: RunStarted) -> None:
        """Look at the lags of the plan."""
        self.checks += 1
        if self.schedule.lags != (0,) or self.schedule.old_logprob_source in ("engine", "none"):
            return
        if self.schedule.max_age != 0:  # the weights that compute old log-probs are not those that sampled
            return
        more = event.facts.get("more_updates")
        self.fail(
            expected="nothing else: every micro-batch trains on samples of the current weights",
            observed=f"lag 0 only, {number(self.schedule.updates_per_rollout, 'updates')} for each rollout",
            why="the ratio is 1 on every token, so clipping never acts and a loss near 0 in the logs is cosmetic",
            fix=f"nothing to fix; {more or 'more reuse epochs or a rollout larger than an update'} would make clipping act",
        )


class IntervalMeetsCycle(Rule):
    """A checkpoint or an evaluation falls into the middle of a rollout's updates.

    What it checks:
        Where "step" counts updates: the interval of checkpoints, and that of evaluations, is a whole number of
        rollouts.

    Why it matters:
        A checkpoint does not hold the samples of the rollout that was under way. A resumed run generates these samples
        anew and trains them another number of times (trl PR#3148; RLS701).

    Example:
        INFO RLS114 Interval does not line up with the rollouts · the whole run
          observed  one every 10 updates, which are 5/2 rollouts of 4 updates
          why       the checkpoint falls into the middle of a rollout's updates; a
                    resumed run generates that rollout anew
          fix       an interval of 8 or 12 updates

    What to do:
        Take an interval that is a multiple of the updates of a rollout.

    Known limits:
        - It knows intervals in updates. Intervals in hours, or a checkpoint that you save yourself, are not looked at.

    Sources:
        - https://github.com/huggingface/trl/pull/3148: a resumed run that trains on None
        - https://github.com/huggingface/trl/issues/3665: the same from a user's side
    """

    code = "RLS114"
    title = "Interval does not line up with the rollouts"
    severity = "info"
    seen_in = "plan"
    report = "https://github.com/huggingface/trl/pull/3148"

    def started(self, event: RunStarted) -> None:
        """Compare the intervals with the updates of a rollout."""
        schedule = self.schedule
        if schedule.step_unit != "update" or not schedule.updates_per_rollout:
            return
        for name, what in (("save_every", "checkpoint"), ("eval_every", "evaluation")):
            every = event.facts.get(name)
            if not every or every < 1 or (schedule.updates is not None and every >= schedule.updates):
                continue
            rollouts = Fraction(every) / schedule.updates_per_rollout
            if rollouts.denominator != 1:
                multiple = schedule.updates_per_rollout.numerator
                below, above = every // multiple * multiple, -(-every // multiple) * multiple
                self.fail(
                    expected=f"a {what} after whole rollouts",
                    observed=f"one every {every} updates, which are {rollouts} rollouts of {schedule.updates_per_rollout} updates",
                    why=f"the {what} falls into the middle of a rollout's updates"
                    + ("; a resumed run generates that rollout anew" if what == "checkpoint" else ""),
                    fix=f"an interval of {' or '.join(str(v) for v in (below, above) if v)} updates",
                )
                return
