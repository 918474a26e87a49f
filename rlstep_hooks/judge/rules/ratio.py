"""RLS3xx: old log-probs and the ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.conformance import observed_lag
from rlstep_hooks.judge.rules.base import RECENT_UPDATES, RolloutsWithSignal, Rule, remember
from rlstep_hooks.judge.rules.precision import how_far
from rlstep_hooks.judge.timeline import ExpectedRefresh
from rlstep_hooks.record.events import MicroBatch, Refresh, Rollout

if TYPE_CHECKING:
    from collections import Counter

    from rlstep_hooks.judge.conformance import Difference
    from rlstep_hooks.judge.rules.base import Place, Progress
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.events import MicroBatchValues, RolloutValues, RunEnded, Update

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


class RefreshNotAsPlanned(Rule):
    """Old log-probs were computed at another time, or by other weights, than planned.

    What it checks:
        Old log-probs are computed exactly when the framework's formula says: once for each rollout, or never where the
        current forward takes their place; by the policy, at the version that sampled the rollout; not inside the loss.

    Why it matters:
        They are the denominator of the ratio. Computed later than planned they hide how far the policy has moved; not
        computed at all, stale samples are treated as fresh.

    What to do:
        Look for code that changes the old log-probs (`old_per_token_logps` in TRL), or computes them in the loss.
    """

    code = "RLS303"
    title = "Old log-probs not refreshed as planned"
    topics = ("refresh",)
    compares = (Rollout, Refresh)

    def difference(self, difference: Difference) -> Finding | None:
        """Claim a refresh that is missing or surplus, or of another version."""
        if isinstance(difference.expected, ExpectedRefresh) and difference.aspect == "kind":
            self.checks += 1
            return self.fail(
                expected="old log-probs computed with the rollout",
                observed="none",
                where=difference.where,
                why="samples that will be older than the weights are trained as if they were fresh",
                fix="look for code that removes or replaces the old log-probs of the rollout",
                variant="missing",
            )
        if difference.aspect == "version" and isinstance(difference.observed, Refresh):
            self.checks += 1
            return self.fail(
                expected=f"old log-probs of policy version {getattr(difference.expected, 'version', '?')}",
                observed=f"of version {getattr(difference.observed, 'policy_version', '?')}",
                where=difference.where,
                why="the ratio compares the current policy with another one than the sampler",
                fix="look for code that computes old log-probs later, or with other weights",
                variant="version",
            )
        if isinstance(difference.observed, Refresh) and difference.aspect == "kind":
            self.checks += 1
            place = "inside the training loss" if difference.observed.in_loss else "outside its place"
            return self.fail(
                expected="no refresh here",
                observed=f"old log-probs computed again, {place}",
                where=difference.where,
                why="a denominator recomputed with newer weights pulls the ratio towards 1 and hides the lag",
                fix="compute old log-probs once, with the rollout",
                variant="surplus",
            )
        return None

    def refresh(self, event: Refresh) -> Finding | None:
        """Old log-probs that no forward of the policy produced."""
        if event.policy_version is not None:
            return None
        return self.fail(
            expected="old log-probs from a forward of the policy",
            observed="old log-probs that no observed forward of the policy produced",
            where=self.progress.where(rollout=self.progress.rollout_number(event.rollout)),
            why="they come from other weights or another computation, so the ratio is not that of this policy",
            fix="look for code that replaces the old log-probs of the rollout",
            variant="origin",
        )


class StaleWithoutOldLogProbs(Rule):
    """Stale samples are trained without old log-probs.

    What it checks:
        Where no old log-probs exist, and the loss takes the current ones in their place, the samples come from the current
        weights.

    Why it matters:
        The ratio is then 1 by construction although the samples are older than the weights: off-policy data without a
        correction.

    What to do:
        Align the generation period with the accumulation (a multiple of each other), or use a release that computes old
        log-probs there.
    """

    code = "RLS304"
    title = "Stale samples without old log-probs"
    topics = ("samples", "refresh")
    nothing_seen = "all samples came with old log-probs"
    cannot_see = "which version sampled them was not observed"

    def microbatch(self, event: MicroBatch) -> Finding | None:
        """Compare the samples' version with the policy's."""
        if event.old_source != "detach":
            return None
        if event.sampled_version is None:
            self.missed += 1
            return None
        self.checks += 1
        age = event.policy_version - event.sampled_version
        if age == 0:
            return None
        return self.fail(
            expected="old log-probs of the version that sampled, or samples of the current weights",
            observed=f"samples {age} updates old, ratio forced to 1",
            where=self.progress.where(microbatch=event.index),
            why="off-policy samples are trained without a correction, and the logged ratio cannot show it",
            fix="make the generation period a divisor of the accumulation (or a multiple with old log-probs)",
        )


class OldLogProbsAltered(Rule):
    """The old log-probs in the loss are not those that were computed.

    What it checks:
        A checksum of each sample's old log-probs, taken when they were computed, equals the checksum at each use: bit for
        bit, sample by sample.

    Why it matters:
        Values that were overwritten, or that moved to another sample, give a ratio between unrelated numbers.

    What to do:
        Look for code that writes into the sample buffer, or reorders some of its tensors and not others.
    """

    code = "RLS305"
    title = "Old log-probs altered before use"
    topics = ("refresh", "samples")
    nothing_seen = "the run had no old log-probs to follow"
    optional = True

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch, place: Place) -> Finding | None:
        """Look at the comparison of checksums."""
        if values.old_intact is None:
            self.missed += event.old_source in ("at_rollout", "recompute")
            return None
        self.checks += 1
        if values.old_intact:
            return None
        return self.fail(
            expected="the old log-probs of these samples, bit for bit as computed",
            observed="other values",
            where=self.progress.where_at(place, event),
            why="they were overwritten, replaced, or moved to another sample on the way to the loss",
            fix="look for code that writes into the sample buffer or reorders part of it",
        )


class TokensAltered(Rule):
    """The tokens in the loss are not those that were generated.

    What it checks:
        A checksum of each sample's completion tokens, taken after generation, equals the checksum in the loss.

    Why it matters:
        Old log-probs, rewards and advantages belong to the generated tokens. Trained on others, all three are wrong at once
        and no metric shows it.

    What to do:
        Look for code between rollout and loss that re-tokenises, truncates or reorders completions.
    """

    code = "RLS306"
    title = "Tokens altered before use"
    topics = ("samples",)
    nothing_seen = "nothing was trained"
    cannot_see = "the tokens of the micro-batches were not compared with those generated"

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch, place: Place) -> Finding | None:
        """Look at the comparison of checksums."""
        if values.tokens_intact is None:
            self.missed += event.old_source in ("at_rollout", "recompute")
            return None
        self.checks += 1
        if values.tokens_intact:
            return None
        return self.fail(
            expected="the completion tokens of these samples, as generated",
            observed="other tokens",
            where=self.progress.where_at(place, event),
            why="log-probs, rewards and advantages belong to the generated tokens",
            fix="look for code that re-tokenises, truncates or reorders completions after the rollout",
        )


class LagNotAsPlanned(Rule):
    """Samples are trained at another lag than planned.

    What it checks:
        For every micro-batch: updates made since its old log-probs were computed (or, without them, since it was sampled).
        Integers, compared exactly.

    Why it matters:
        The lag is what clipping and importance weights correct for. A lag of 0 where 3 was planned means that nothing is
        reused; a larger one means staler data than configured.

    What to do:
        Look at the first event that differs; the lag follows from the order of rollouts and updates.
    """

    code = "RLS307"
    title = "Lag not as planned"
    topics = ("order", "samples")
    compares = (MicroBatch,)
    nothing_seen = "nothing was trained"
    cannot_see = "which version the old log-probs or the samples of a micro-batch come from was not observed"

    def microbatch(self, event: MicroBatch) -> Finding | None:
        """Count those whose lag is not known: they match any plan."""
        self.missed += observed_lag(event) is None
        return None

    def checked(self, matched: Counter[type]) -> int:
        """Micro-batches whose lag was compared."""
        return max(super().checked(matched) - self.missed, 0)

    def difference(self, difference: Difference) -> Finding | None:
        """Claim a difference in lag."""
        if difference.aspect != "lag" or not isinstance(difference.observed, MicroBatch):
            return None
        self.checks += 1
        return self.fail(
            expected=f"lag {getattr(difference.expected, 'lag', '?')}",
            observed=f"lag {observed_lag(difference.observed)}",
            where=difference.where,
            why="these samples are older or newer, counted in updates, than the configuration says",
            fix="look for code that picks micro-batches from the sample buffer, or refreshes old log-probs",
        )


class ReferenceLogProbs(Rule):
    """Reference log-probs come at another time than planned.

    What it checks:
        With a KL coefficient other than 0 each rollout comes with reference log-probs (in releases that compute them there);
        without one, none are computed.

    Why it matters:
        A missing reference makes the KL term 0 or wrong; a surplus one costs a forward of a second model on every rollout.

    What to do:
        Compare the KL coefficient in the live configuration with what you set.
    """

    code = "RLS308"
    title = "Reference log-probs not as planned"
    topics = ("order",)
    compares = (Rollout,)

    def difference(self, difference: Difference) -> Finding | None:
        """Claim a difference in the reference pass."""
        if difference.aspect != "reference":
            return None
        self.checks += 1
        planned = bool(getattr(difference.expected, "reference", False))
        return self.fail(
            expected="reference log-probs with the rollout" if planned else "no reference log-probs",
            observed="none" if planned else "reference log-probs",
            where=difference.where,
            why="the KL term does not follow the configured coefficient",
            fix="compare the KL coefficient of the live configuration with what you set",
        )


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
