"""Values of the ratio: in the loss and in the logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.conformance import observed_lag
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.judge.rules.precision import how_far
from rlstep_hooks.judge.rules.progress import RECENT_UPDATES, Place, Progress, RolloutsWithSignal, remember

if TYPE_CHECKING:
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.events import MicroBatch, MicroBatchValues, Rollout, RolloutValues, RunEnded, Update


MEAN_TOLERANCE = {"float32": 1e-4, "reduced": 5e-2}
"""Largest mean |log ratio| at lag 0 that rounding explains.

Reduced precision: NVIDIA NeMo-RL's GRPO guide calls a multiplicative token probability error above 1.05 a potential framework
issue (docs/guides/grpo.md, token_mult_prob_error), that is a mean |log ratio| of about 0.05. float32: two forwards of the same
tokens in batches of another shape differ by some units in the last place of the logits; measured healthy runs stay below 1e-6
(tests/systems/trl), and the bound leaves two orders of magnitude for deeper models and TF32-free GPU kernels.
"""


LOGGED_TOLERANCE = 0.1
"""Largest relative distance of a logged mean ratio. Means of one process and of all differ by less; known faults halve it."""


VISIBLE_CHANGE = {"float32": 1e-7, "reduced": 1e-4}
"""Smallest change of a weight after which a ratio of exactly 1 on every token cannot be rounding."""


class RatioAtLagZero(Rule):
    """The ratio is not 1 although the same weights computed both log-probs.

    What it checks:
        On every micro-batch at lag 0 whose old log-probs were computed separately, the mean |log ratio| over real tokens is
        within the tolerance of the compute dtype (`rlstep_hooks.judge.rules.ratio.MEAN_TOLERANCE` gives numbers and sources).

    Why it matters:
        The ratio must be 1 at the first update on a rollout; if it is not, the two forwards differ in something other than
        the weights, and every later ratio is wrong by as much (trl#454, trl PR#3029, trl PR#3234).

    What to do:
        In this order: dropout active in training mode (`disable_dropout=True`), temperature applied in one forward only,
        old log-probs that belong to other samples or other weights, another precision or attention kernel, padding.
    """

    code = "RLS301"
    title = "Ratio not 1 at lag 0"
    severity = "warning"
    topics = ("log_ratio",)
    nothing_seen = (
        "no micro-batch at lag 0 had old log-probs of its own (they are the current ones, ratio 1 by construction)"
    )
    cannot_see = "which version computed the old log-probs of a micro-batch, or their ratio, was not observed"

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch, place: Place) -> Finding | None:
        """Compare the mean |log ratio| of a lag-0 micro-batch with the tolerance."""
        if event.old_source in ("detach", "engine"):
            return None
        lag, mean = observed_lag(event), values.mean_abs_log_ratio
        if lag is None or (lag == 0 and mean is None):
            self.missed += 1
            return None
        if lag or mean is None:
            return None
        self.checks += 1
        tolerance = MEAN_TOLERANCE[self.progress.precision]
        if mean <= tolerance:
            return None
        dropout = self.progress.started.facts.get("dropout_modules", 0)
        cause = (
            f"the model has {dropout} active dropout modules, and each forward draws its own mask"
            if dropout
            else "the forward that computed the old log-probs differs from the training forward in more than its weights"
        )
        return self.fail(
            expected=f"mean |log ratio| at most {tolerance:g} in {self.progress.compute_dtype}",
            observed=f"mean {mean:.3g}, max {values.max_abs_log_ratio or 0.0:.3g}",
            where=self.progress.where_at(place, event),
            degree=how_far(mean, tolerance),
            why=cause + "; every later ratio is off by as much",
            fix=(
                "set the model's dropout probabilities to 0 (the trainer may have a setting for it, such as disable_dropout)"
                if dropout
                else "compare temperature, precision, attention kernel, padding and the identity of the samples of both forwards"
            ),
        )


class RatioStuckAtOne(Rule):
    """The ratio is exactly 1 on every token although the weights have changed.

    What it checks:
        On micro-batches at lag above 0, after updates that visibly changed weights, the log ratio is not exactly 0 on every
        real token. An exact test: rounding moves some token of a micro-batch once weights differ visibly. In reduced
        precision a tiny model can round to the same logits, so there the rule only warns.

    Why it matters:
        Old log-probs that always equal the new ones are recomputed with the current weights, or are the same tensor: the
        clip never acts, and reuse epochs run without a trust region (verifiers PR#320, trl#3120).

    What to do:
        Find where old log-probs are computed again, or where the current ones are passed in their place.
    """

    code = "RLS302"
    title = "Ratio stuck at 1"
    topics = ("log_ratio", "weights")
    nothing_seen = "no micro-batch had a lag above 0 after an update that visibly changed weights"
    cannot_see = "which version sampled a micro-batch, or its ratio, was not observed"

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch, place: Place) -> Finding | None:
        """Look for an exact 0 on every token."""
        if event.old_source == "detach" or not values.tokens:
            return None
        if event.sampled_version is None or values.max_abs_log_ratio is None:
            self.missed += 1
            return None
        if event.sampled_version >= event.policy_version:
            return None
        if event.old_version is not None and event.old_version >= event.policy_version:
            return None
        if not self._visibly_changed(event.sampled_version, event.policy_version):
            return None
        self.checks += 1
        if values.max_abs_log_ratio != 0.0:
            return None
        return self.fail(
            expected=(
                f"a ratio other than 1 on some of {values.tokens} tokens, "
                f"{event.policy_version - event.sampled_version} updates after they were sampled"
            ),
            observed="exactly 1 on every token",
            where=self.progress.where_at(place, event),
            why="the old log-probs are those of the current weights: recomputed, or the same tensor",
            fix="find the code that computes old log-probs again, or passes the current ones in their place",
            severity="error" if self.progress.precision == "float32" else "warning",
        )

    def _visibly_changed(self, since: int, version: int) -> bool:
        """Whether an update between two versions changed some weight so much that a ratio must show it."""
        visible, made = VISIBLE_CHANGE[self.progress.precision], self.progress.update_values
        for number in range(max(since, version - RECENT_UPDATES) + 1, version + 1):
            if number in made and (made[number].max_change or 0.0) >= visible:
                return True
        return False


UNMOVED_ROLLOUTS = 3
"""Rollouts in a row whose ratio stays exactly 1, before it is reported where the learning rate is so small that one could be
rounding."""


class RatioNeverMoves(Rule):
    """The ratio is exactly 1 on every token of a whole rollout, at every lag.

    What it checks:
        For each rollout whose advantages are not all 0, with a learning rate above 0: some micro-batch at a lag above 0 has some
        token whose log ratio is not exactly 0. No reason is asked for: whether weights changed is another rule's question. Where the
        rate is so small that rounding could hide one rollout's updates, it fails after three rollouts in a row.

    Why it matters:
        Updates that move the policy move the ratio. One that never moves means that nothing was learned in between, or that the
        old log-probs are the new ones under another name; either way the later updates on a rollout are not what the configuration
        says, and the clip never acts.

    What to do:
        If RLS406, RLS401 or RLS407 failed too, the weights do not change: begin there. Else find where old log-probs are computed
        again, or where the current ones are passed in their place.
    """

    code = "RLS310"
    title = "Ratio never leaves 1"
    topics = ("log_ratio",)
    nothing_seen = "no rollout with advantages known to differ from 0 had a micro-batch at a lag above 0 with old log-probs of its own"

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._rates: dict[int, float] = {}
        """By the version that an update made, its learning rate."""
        self._signal = RolloutsWithSignal()
        self._open: _AtLag | None = None
        self._unmoved = 0

    def update(self, event: Update) -> Finding | None:
        """Remember the rate of an update."""
        if event.applied and event.learning_rate is not None:
            remember(self._rates, event.version, event.learning_rate)
        return None

    def rollout_values(self, values: RolloutValues, event: Rollout, place: Place) -> Finding | None:
        """Remember whether there is something to learn from a rollout."""
        self._signal.add(values, event, place)
        return None

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch, place: Place) -> Finding | None:
        """Look at a micro-batch that is trained after an update."""
        lag = observed_lag(event)
        if (
            event.old_source not in ("at_rollout", "recompute", "engine")
            or values.max_abs_log_ratio is None
            or not values.tokens
        ):
            return None
        if lag is None or lag < 1:
            return None
        finding = None
        if self._open is None or self._open.rollout != place[0] - 1:
            finding = self._settle()
            self._open = _AtLag(place[0] - 1, event, place)
        self._open.microbatches += 1
        self._open.moved = self._open.moved or values.max_abs_log_ratio != 0.0
        between = range(
            max(event.policy_version - lag, event.policy_version - RECENT_UPDATES) + 1, event.policy_version + 1
        )
        self._open.rate = max([self._open.rate, *(self._rates.get(version, 0.0) for version in between)])
        return finding

    def ended(self, event: RunEnded) -> Finding | None:
        """Settle the last rollout."""
        return self._settle()

    def _settle(self) -> Finding | None:
        seen, self._open = self._open, None
        if seen is None or seen.rollout not in self._signal.numbers or not seen.rate:
            return None
        self._signal.forget_to(seen.rollout)
        self.checks += 1
        self._unmoved = 0 if seen.moved else self._unmoved + 1
        visible = seen.rate >= VISIBLE_CHANGE[self.progress.precision]
        if seen.moved or not (visible or self._unmoved >= UNMOVED_ROLLOUTS):
            return None
        return self.fail(
            expected="a ratio other than 1 on some token of the rollout, once the policy was updated on it",
            observed=f"exactly 1 on every token of {seen.microbatches} micro-batches at a lag above 0",
            where=self.progress.where_at(seen.place, seen.first),
            why=(
                f"advantages differ from 0 and the learning rate is {seen.rate:g}: either the updates do not reach the weights, or "
                "the old log-probs are those of the current weights"
            ),
            fix="see whether the weights change (RLS401, RLS406, RLS407); if they do, find what passes new log-probs for old ones",
        )


class _AtLag:
    """What the micro-batches of one rollout at a lag above 0 showed."""

    __slots__ = ("first", "microbatches", "moved", "place", "rate", "rollout")

    def __init__(self, rollout: int, first: MicroBatch, place: Place) -> None:
        self.rollout = rollout
        self.first = first
        self.place = place
        self.microbatches = 0
        self.moved = False
        self.rate = 0.0
        """The largest learning rate of the updates in between."""


class LoggedRatio(Rule):
    """The ratio in the logs is not the ratio of the updates.

    What it checks:
        Where the framework logs a mean ratio for each rollout: its distance from the mean over the same micro-batches, at most
        10 % (each process logs the mean of all, and is compared with its own).

    Why it matters:
        A mean ratio far from 1 is the usual sign of stale samples or a broken denominator. One that is logged too small hides
        both, and makes a healthy run look broken; whatever is averaged in the same way (clip fraction, KL, losses) is off by
        the same factor.

    What to do:
        Divide the logged numbers by the factor that is named, or take the work-around.
    """

    code = "RLS309"
    title = "Logged ratio differs from the measured one"
    severity = "warning"
    topics = ("log_ratio",)
    nothing_seen = "the framework logs no mean ratio"

    def rollout_values(self, values: RolloutValues, event: Rollout, place: Place) -> Finding | None:
        """Compare the two means."""
        if values.logged_ratio is None or not values.mean_ratio:
            return None
        self.checks += 1
        factor = values.logged_ratio / values.mean_ratio
        if abs(factor - 1) <= LOGGED_TOLERANCE:
            return None
        return self.fail(
            expected=f"the mean ratio of the updates on this rollout, {values.mean_ratio:.4g}",
            observed=f"{values.logged_ratio:.4g} in the logs, {factor:.3g} of it",
            where=self.progress.where_at(place, event),
            why="the logs average over more than the micro-batches that were trained, or over others",
            fix=f"divide this and other averages of the loop by {factor:.3g}",
        )
