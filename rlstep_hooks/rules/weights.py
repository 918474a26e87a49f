"""RLS4xx: weights, and the weights that the sampler holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.rules.base import Rule

if TYPE_CHECKING:
    from rlstep_hooks.events import Rollout, RolloutValues, Update, UpdateValues
    from rlstep_hooks.report import Finding, Where

SAMPLER_GAP_TOLERANCE = 0.05
"""Largest mean |trainer log-prob - engine log-prob| without a warning (NeMo-RL docs/guides/grpo.md: 1.05 multiplicative)."""


class WeightsUnchanged(Rule):
    """An update left the weights as they were.

    What it checks:
        A probe of trainable weights before and after each optimizer step. It fails when no probed weight changed although
        some had a gradient that, times the learning rate, is larger than the rounding of their dtype.

    Why it matters:
        Steps that change nothing look like training: counters, learning rate and loss go on. Causes seen: an optimizer that
        holds other parameters than the model's, frozen parameters, updates lost in the rounding of bf16 weights.

    What to do:
        Compare the optimizer's parameters with the model's, and `requires_grad`; with low-precision weights keep a float32
        master copy.
    """

    code = "RLS401"
    title = "Update changed no weight"
    topics = ("weights",)
    nothing_seen = "no update had a gradient and a learning rate large enough to show in the probed weights"

    def update_values(self, values: UpdateValues, event: Update, where: Where) -> Finding | None:
        """Look at the probe of an update that was made."""
        if not event.applied or not values.visible or not event.learning_rate:
            return None
        self.checks += 1
        if values.changed:
            return None
        return self.fail(
            expected=f"some of {values.with_gradient} probed weights with a gradient change (learning rate {event.learning_rate:g})",
            observed=f"none of {values.probed} probed weights changed",
            where=where,
            why="the optimizer stepped without effect on the model that is trained",
            fix="compare the optimizer's parameters with the model's, check requires_grad and the dtype of the weights",
        )


class SamplerVersion(Rule):
    """A rollout was sampled with other weights than planned.

    What it checks:
        The policy version that the sampler held at each rollout equals the policy's own (synchronous training): weights were
        pushed to the engine since the last update, or the policy itself generated.

    Why it matters:
        Samples of older weights train as if they were on-policy. It costs reward slowly and raises no error (trl#5312: an
        engine that woke up with old weights).

    What to do:
        Look at the push of weights to the engine: was it made, and after the last update?
    """

    code = "RLS402"
    title = "Sampler held other weights"
    topics = ("sampler",)

    def rollout(self, event: Rollout) -> Finding | None:
        """Compare the sampler's version with the policy's."""
        if event.purpose != "training" or event.sampler_version is None:
            return None
        self.checks += 1
        if event.sampler_version == event.policy_version:
            return None
        unknown = event.sampler_version < 0
        return self.fail(
            expected=f"a sampler with the weights of version {event.policy_version}",
            observed=(
                "a sampler that is not the policy being trained"
                if unknown
                else f"a sampler with version {event.sampler_version}, {event.policy_version - event.sampler_version} updates behind"
            ),
            where=self.progress.where(),
            why="the samples come from other weights than those that train on them, and the ratio does not show it",
            fix=(
                "look for code that generates with a copy of the model"
                if unknown
                else "look at the push of weights to the engine: it must come after the last update and before the rollout"
            ),
        )


class SamplerGap(Rule):
    """The engine's log-probs are far from the trainer's at the same version.

    What it checks:
        Where the engine returns log-probs of the tokens it sampled: their mean distance from the trainer's at the same policy
        version, against NeMo-RL's published bound (about 0.05).

    Why it matters:
        Distance at equal versions means that the engine computes something else: stale weights behind an equal version,
        another precision, a temperature or truncation applied on one side only (trl#4159, trl#5312).

    What to do:
        Compare weights first, then temperature, top-p, and the engine's log-prob mode.
    """

    code = "RLS403"
    title = "Engine and trainer disagree"
    severity = "warning"
    topics = ("sampler",)
    nothing_seen = "the sampler returned no log-probs"

    def rollout_values(self, values: RolloutValues, event: Rollout, where: Where) -> Finding | None:
        """Compare the mean gap with the bound."""
        if values.sampler_gap_mean is None:
            return None
        self.checks += 1
        if values.sampler_gap_mean <= SAMPLER_GAP_TOLERANCE:
            return None
        return self.fail(
            expected=f"mean |log-prob difference| at most {SAMPLER_GAP_TOLERANCE:g}",
            observed=f"mean {values.sampler_gap_mean:.3g}, max {values.sampler_gap_max or 0.0:.3g}",
            where=where,
            why="at the same policy version engine and trainer should give nearly the same log-probs",
            fix="compare weights first, then temperature, top-p and the engine's log-prob mode",
        )


class WeightsMovedBetweenUpdates(Rule):
    """Weights changed where no update was made.

    What it checks:
        The probed weights before each optimizer step equal, bit for bit, their values after the step before it.

    Why it matters:
        Something other than the optimizer writes into the policy: a checkpoint loaded in mid-run, an average or reference
        copied back, an engine that shares the tensors. Every count of versions is then wrong.

    What to do:
        Look for callbacks and engines that write into the model's parameters.
    """

    code = "RLS404"
    title = "Weights changed without an update"
    topics = ("weights",)
    nothing_seen = "fewer than two updates were probed"

    def update_values(self, values: UpdateValues, event: Update, where: Where) -> Finding | None:
        """Look at the movement since the last update."""
        if event.index == 0 or self.progress.updates < 2:
            return None
        self.checks += 1
        if not values.moved_before:
            return None
        return self.fail(
            expected="the weights that the last update left",
            observed=f"{values.moved_before} of {values.probed} probed weights have other values",
            where=where,
            why="something other than the optimizer wrote into the policy",
            fix="look for callbacks and engines that write into the model's parameters",
        )
