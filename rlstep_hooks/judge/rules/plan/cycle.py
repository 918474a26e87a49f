"""How updates, checkpoints and evaluations fall into the cycle of rollouts."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.planning.finding import Where

if TYPE_CHECKING:
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.events import RunStarted


class ClipNeverActs(Rule):
    """The ratio is 1 by construction, so clipping can never act.

    What it checks:
        Whether every micro-batch of the plan has lag 0: old log-probs come from the weights that train on them.

    Why it matters:
        The ratio is then exactly 1, `clip_ratio` is 0, and the loss reads 0 in the logs when advantages are normalised (its
        gradient is not 0). This is the default of GRPO in TRL and correct: plain on-policy policy gradient (trl#2703,
        trl#3452). It is reported so that nobody looks for a bug, or relies on a clip that is not there.

    What to do:
        Nothing, if you want on-policy updates. For several updates on each rollout raise the number of reuse epochs, or make
        a rollout larger than an update.
    """

    code = "RLS102"
    seen_in = "plan and run"
    report = "https://github.com/huggingface/trl/issues/2703"
    title = "Ratio is 1 by construction"
    severity = "info"

    def started(self, event: RunStarted) -> Finding | None:
        """Look at the lags of the plan."""
        self.checks += 1
        if self.schedule.lags != (0,) or self.schedule.old_logprob_source in ("engine", "none"):
            return None
        return self.fail(
            expected="nothing else: every micro-batch trains on samples of the current weights",
            observed=f"lag 0 only, {self.schedule.updates_per_rollout} updates per rollout",
            why="the ratio is 1 on every token, so clipping never acts and a loss near 0 in the logs is cosmetic",
            fix="nothing to fix; more reuse epochs or a rollout larger than an update would make clipping act",
            where=Where(),
        )


class IntervalMeetsCycle(Rule):
    """A checkpoint or evaluation falls into the middle of a rollout's updates.

    What it checks:
        Where "step" counts updates: whether the interval of checkpoints, and that of evaluations, is a whole number of
        rollouts.

    Why it matters:
        A run resumed from such a checkpoint has lost the samples of the rollout that it was in: it generates anew and trains
        them another number of times (trl PR#3148, RLS701). With the framework's own default interval this is only said.

    What to do:
        Take an interval that is a multiple of the updates per rollout.
    """

    code = "RLS114"
    title = "Interval does not line up with the rollouts"
    severity = "info"
    seen_in = "plan"
    report = "https://github.com/huggingface/trl/pull/3148"

    def started(self, event: RunStarted) -> Finding | None:
        """Compare the intervals with the updates of a rollout."""
        schedule = self.schedule
        if schedule.step_unit != "update" or not schedule.updates_per_rollout:
            return None
        for name, what in (("save_every", "checkpoint"), ("eval_every", "evaluation")):
            every = event.facts.get(name)
            if not every or every < 1 or (schedule.updates is not None and every >= schedule.updates):
                continue
            rollouts = Fraction(every) / schedule.updates_per_rollout
            if rollouts.denominator != 1:
                multiple = schedule.updates_per_rollout.numerator
                below, above = every // multiple * multiple, -(-every // multiple) * multiple
                return self.fail(
                    where=Where(),
                    expected=f"a {what} after whole rollouts",
                    observed=f"one every {every} updates, which are {rollouts} rollouts of {schedule.updates_per_rollout} updates",
                    why=f"the {what} falls into the middle of a rollout's updates"
                    + ("; a resumed run generates that rollout anew" if what == "checkpoint" else ""),
                    fix=f"an interval of {' or '.join(str(v) for v in (below, above) if v)} updates",
                )
        return None
