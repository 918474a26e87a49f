"""Optimizer steps that were skipped, or saved by an early stop, and runs without any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.effects import LAG, ORDER, RATE, STANDING_STILL, UPDATES_SHIFTED, Effects, here, lasting
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.planning.finding import Where
from rlstep_hooks.planning.words import number
from rlstep_hooks.record.events import (
    NOT_FINITE,
    Rollout,
    RunEnded,
    Update,
)

if TYPE_CHECKING:
    from rlstep_hooks.judge.rules.progress import Progress
    from rlstep_hooks.record.events import MicroBatch, MicroBatchValues, PassesEnded

ROUNDING = 1e-6
"""The rounding of a mean of exp(x) - 1 - x in float32, relative and absolute: each term is the difference of numbers near 1."""


class NoUpdate(Rule):
    """Training ended without a single update.

    What it checks:
        A run that ends without an exception made at least one optimizer step, unless its settings say that it only
        evaluates, or somebody asked it to stop before the first one. A run that was resumed where its plan ends is a
        warning, because the plan leaves it nothing to do.

    Why it matters:
        The process exits with status 0 and saves a model that was never trained (OpenRLHF#1297, verl#7401).

    Example:
        ERROR RLS209 No update in the whole run · data epoch 0, rollout 0, update 0
          expected  8 updates
          observed  no update
          why       the run ended normally and saved weights that were never trained
          fix       compare the rows with the prompts of one rollout, and look at
                    how training began (a resume at its end?)

    What to do:
        Look at the first finding about the order of events, and compare the rows with the prompts of one rollout. After
        a resume at the end of the plan, raise the number of epochs or steps.

    Known limits:
        - The rule counts steps of the optimizer. Whether they change weights is RLS401 and RLS406.

    Sources:
        - https://github.com/OpenRLHF/OpenRLHF/issues/1297: a saved model that was never trained
        - https://github.com/volcengine/verl/issues/7401: a resumed run that exits without an update
        - https://github.com/LeapLabTHU/Absolute-Zero-Reasoner/issues/14: an empty loader
    """

    code = "RLS209"
    title = "No update in the whole run"
    topics = ("order", "updates")
    produces = (Effects((*ORDER, *RATE, "RLS205", "RLS206", "RLS406"), first=None),)

    def ended(self, event: RunEnded) -> None:
        """Look at the updates of a completed run. One that was asked to stop before its first update did what it was asked."""
        stopped = event.stopped and not self.progress.applied
        if event.status != "completed" or stopped or self.progress.started.facts.get("evaluation_only"):
            return
        if self.holds(self.progress.applied > 0):
            return
        done = self.progress.started.start_updates
        if self.progress.resumed and self.schedule.updates == done:
            self.fail(
                severity="warning",
                expected="updates left to make",
                observed=f"a resume after update {done} of {done}, and none made",
                why="the checkpoint is at the end of the plan, so the run ended normally and trained nothing",
                fix="raise the epochs or the number of steps, or start from an earlier checkpoint",
            )
            return
        rows, needed = self.schedule.rows, self.schedule.prompts_per_rollout * self.schedule.rollouts_per_cycle
        why, fix = (
            "",
            "compare the rows with the prompts of one rollout, and look at how training began (a resume at its end?)",
        )
        if rows is not None and rows < needed and not self.progress.rollouts:
            few = "1 row does" if rows == 1 else f"{number(rows, 'rows')} do"
            why = f"{few} not fill a rollout of {number(needed, 'prompts')}, so none was made: "
            fix = f"give at least {number(needed, 'rows')}, or choose rollouts of at most {number(rows, 'prompts')}"
        elif self.schedule.updates == 0:
            why, fix = (
                "the settings ask for no update: ",
                "look at the number of passes over the rows and at the number of steps",
            )
        self.fail(
            expected=self._expected(),
            observed="no update",
            why=why + "the run ended normally and saved weights that were never trained",
            fix=fix,
        )

    def _expected(self) -> str:
        """How many updates the plan has, or the trainer announced where the plan has none."""
        if self.schedule.updates:
            return number(self.schedule.updates, "updates")
        announced = self.progress.started.facts.get("max_steps")
        if isinstance(announced, int) and announced > 0:
            return f"{number(announced, 'updates')}, as the trainer announced (max_steps)"
        return "some updates"


class SkippedUpdate(Rule):
    """The framework counted an update that the optimizer never made.

    What it checks:
        Every time the training loop reaches its optimizer step, torch's optimizer really steps. The critic's steps are
        looked at too.

    Why it matters:
        The step counter and the learning rate advance, the weights do not. A gradient scaler (fp16) skips steps with a
        gradient that is not finite on purpose, usually a few at the start of a run; that is reported as information. A
        framework that skips such a step itself is a warning. Anything else that swallows a step is an error.

    Example:
        ERROR RLS210 Update skipped · data epoch 0, rollout 3, update 7
          expected  the optimizer steps
          observed  the loop went on without a step
          why       counters and learning rate advance while the weights stay
          fix       look for a wrapper around the optimizer

    What to do:
        With a gradient scaler: nothing, unless steps are skipped throughout. If a gradient is not finite: find the loss
        or the reward that is not. Otherwise look for a wrapper around the optimizer.

    Known limits:

    Sources:
        - https://docs.pytorch.org/docs/stable/amp.html: when GradScaler skips a step
        - https://arxiv.org/abs/2506.13814: silent training errors, and how often a step without effect is one
    """

    code = "RLS210"
    title = "Update skipped"
    topics = ("order", "updates")
    produces = (
        here("RLS208", "RLS806", "RLS809", "RLS810", *LAG, *STANDING_STILL),
        lasting("RLS303 version", "RLS402", "RLS405 version"),
        *UPDATES_SHIFTED,
    )

    def update(self, event: Update) -> None:
        """Look at whether the step was made."""
        if self.holds(event.applied):
            return
        of = " of the critic" if event.role == "critic" else ""
        scaler = event.skip_reason == "gradient scaler"
        not_finite = event.skip_reason == NOT_FINITE
        self.fail(
            expected=f"the optimizer{of} steps",
            observed=f"the loop went on without a step{of}" + (f" ({event.skip_reason})" if event.skip_reason else ""),
            why=(
                "the gradient scaler found a gradient that is not finite"
                if scaler
                else "counters and learning rate advance while the weights stay"
            ),
            fix=(
                "nothing, unless steps are skipped throughout"
                if scaler
                else "look for the loss or reward that is not finite; the framework skips such steps without an error"
                if not_finite
                else "look for a wrapper around the optimizer"
            ),
            severity="info" if scaler else "warning" if not_finite else "error",
            variant=of + event.skip_reason,
        )

    critic_update = update


class UpdatesSaved(Rule):
    """The updates on some rollouts ended before the plan's last one.

    What it checks:
        Where the plan lets the updates on a rollout end early (a limit on the KL divergence): how many of the planned
        updates were not made.

    Why it matters:
        The limit is there for this, so it is information. A limit that ends nearly every rollout after its first pass
        means that the configured epochs are never trained: counts in papers and logs then do not hold for this run.

    Example:
        INFO RLS212 Updates saved by an early stop · the whole run
          observed  4 updates not made, on 2 of 4 rollouts
          why       the loop ended its passes over these rollouts early, as the plan
                    allows
          fix       nothing, unless most updates are saved; then lower the learning
                    rate or the epochs

    What to do:
        Nothing, if some updates are saved. If most are, lower the learning rate or the number of epochs.

    Known limits:
        - It counts updates that were not made. Whether the divergence was beyond the limit is RLS214.

    Sources:
        - https://stable-baselines3.readthedocs.io/en/master/modules/ppo.html: target_kl of Stable-Baselines3
        - https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/: early stopping among the details of PPO
    """

    code = "RLS212"
    title = "Updates saved by an early stop"
    severity = "info"
    topics = ("order", "updates")
    nothing_seen = "the plan has no early stop"

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._on_rollout = 0
        self._saved = 0
        self._rollouts = 0
        self._settled = 0

    def rollout(self, event: Rollout) -> None:
        """Count the updates that were saved on the rollout before this one."""
        if event.purpose == "training":
            self._settle()

    def update(self, event: Update) -> None:
        """Count the updates on this rollout."""
        self._on_rollout += 1

    def ended(self, event: RunEnded) -> None:
        """Report the sum."""
        self._settle()
        if not self._saved:
            return
        rate = self.schedule.updates_per_rollout
        self.fail(
            expected=f"at most {rate} updates on each rollout",
            observed=f"{self._saved} updates not made, on {self._rollouts} of {self.progress.rollouts} rollouts",
            where=Where(),
            why="the loop ended its passes over these rollouts early, as the plan allows",
            fix="nothing, unless most updates are saved; then lower the learning rate or the epochs",
        )

    def _settle(self) -> None:
        made, self._on_rollout = self._on_rollout, 0
        if self.schedule.updates_bound != "upper" or not made:
            return
        self.checks += 1
        flush, planned = self.schedule.flush, int(self.schedule.updates_per_rollout)
        if flush is not None and flush.covers(self._settled):
            planned = self.schedule.microbatches_per_rollout or planned
        self._settled += 1
        saved = max(planned - made, 0)
        self._saved += saved
        self._rollouts += saved > 0


class TrainedBeyondLimit(Rule):
    """A mini-batch was trained although its divergence was beyond the limit.

    What it checks:
        Where the configuration limits the KL divergence from the old policy: the framework's own estimate on each mini-batch that was
        trained, recomputed from its log-probs, is not above the limit. In Stable-Baselines3 that is 1.5 times target_kl.

    Why it matters:
        The limit ends the passes over a rollout before the policy has left the region in which the clipped objective means something.
        A limit that was lost lets all passes run, and the run looks like one with a larger learning rate.

    Example:
        ERROR RLS213 Trained beyond the limit of the divergence · data epoch 0,
        rollout 1, update 3, micro-batch 6
          expected  no update on a mini-batch whose divergence is above 0.015
          observed  one at 0.041
          why       the configured limit does not end the passes over this rollout
          fix       look for code that writes to target_kl while the run goes on

    What to do:
        Look for code that writes to target_kl, and for a schedule of it.

    Known limits:
        - The limit is read when training begins. A schedule of somebody's that raises it is found as well.

    Sources:
        - https://stable-baselines3.readthedocs.io/en/master/modules/ppo.html: target_kl of Stable-Baselines3
    """

    code = "RLS213"
    title = "Trained beyond the limit of the divergence"
    topics = ("order", "log_ratio", "updates")
    nothing_seen = "no limit of the divergence is configured, or the divergence is not seen"
    optional = True
    needs = ("microbatch_values.divergence",)

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Compare the divergence of a trained mini-batch with the limit."""
        limit = self.progress.started.facts.get("kl_limit")
        if values.divergence is None or limit is None:
            return
        if not self.holds(values.divergence <= limit * (1 + ROUNDING) + ROUNDING):
            self.fail(
                expected=f"no update on a mini-batch whose divergence is above {limit:.4g}",
                observed=f"one at {values.divergence:.4g}",
                why="the configured limit does not end the passes over this rollout",
                fix="look for code that writes to target_kl while the run goes on",
            )


class EndedWithinLimit(Rule):
    """The passes over a rollout ended although the divergence was within its limit.

    What it checks:
        Where the configuration limits the KL divergence from the old policy, and the passes over a rollout ended before the planned
        last one: a mini-batch was left untrained, and the framework's own estimate on it, recomputed from its log-probs, is above the
        limit. In Stable-Baselines3 that is 1.5 times target_kl.

    Why it matters:
        With such a limit fewer updates than planned are legal, so a loop that ends its passes for another reason looks like one that
        keeps to the limit. The run then trains a part of the configured epochs.

    Example:
        ERROR RLS214 Passes ended within the limit of the divergence · data epoch 0,
        rollout 1, update 3
          expected  passes that end on a mini-batch whose divergence is above 0.015
          observed  they ended at 0.0021
          why       the limit does not end these passes, so something else does
          fix       look for what ends the loop over epochs or mini-batches early

    What to do:
        Look for what ends the loop over epochs or mini-batches early.

    Known limits:
        - The limit is read when training begins. A schedule of somebody's that lowers it is found as well.

    Sources:
        - https://stable-baselines3.readthedocs.io/en/master/modules/ppo.html: target_kl of Stable-Baselines3
    """

    code = "RLS214"
    title = "Passes ended within the limit of the divergence"
    topics = ("order", "log_ratio", "updates")
    nothing_seen = "no limit of the divergence is configured, or no passes ended early"
    optional = True

    def passes_ended(self, event: PassesEnded) -> None:
        """Compare the divergence at which passes ended with the limit."""
        limit = self.progress.started.facts.get("kl_limit")
        if limit is None:
            return
        reached = event.divergence
        if not self.holds(reached is not None and reached >= limit * (1 - ROUNDING) - ROUNDING):
            self.fail(
                expected=f"passes that end on a mini-batch whose divergence is above {limit:.4g}",
                observed="each mini-batch was trained until they ended"
                if reached is None
                else f"they ended at {reached:.4g}",
                why="the limit does not end these passes, so something else does",
                fix="look for what ends the loop over epochs or mini-batches early",
            )
