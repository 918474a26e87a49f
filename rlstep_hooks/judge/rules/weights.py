"""RLS4xx: weights, and the weights that the sampler holds."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.judge.rules.precision import precision_class
from rlstep_hooks.judge.timeline import ExpectedMicroBatch, ExpectedRefresh, ExpectedSync, ExpectedUpdate
from rlstep_hooks.record.events import UNSENT, EpochEnd, Rollout, RunEnded, WeightSync

if TYPE_CHECKING:
    from rlstep_hooks.judge.conformance import Difference
    from rlstep_hooks.judge.rules.base import Place, Progress
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.events import RolloutValues, Update, UpdateValues

SAMPLER_GAP_TOLERANCE = {"float32": 1e-3, "reduced": 0.05}
"""Largest mean |trainer log-prob - engine log-prob| without a warning.

Reduced precision on either side: NeMo-RL docs/guides/grpo.md, 1.05 multiplicative. float32 on both: two implementations of one
model differ by rounding only; a real vLLM engine on a CPU against verl's trainer stays below 1e-6 (tests/systems/verl), and
the bound leaves three orders of magnitude."""


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

    def update_values(self, values: UpdateValues, event: Update, place: Place) -> Finding | None:
        """Look at the probe of an update that was made."""
        if not event.applied or not values.visible or not event.learning_rate:
            return None
        self.checks += 1
        if values.changed:
            return None
        return self.fail(
            expected=f"some of {values.with_gradient} probed weights with a gradient change (learning rate {event.learning_rate:g})",
            observed=f"none of {values.probed} probed weights changed",
            where=self.progress.where_at(place, event),
            why="the optimizer stepped without effect on the model that is trained",
            fix="compare the optimizer's parameters with the model's, check requires_grad and the dtype of the weights",
        )


class SamplerVersion(Rule):
    """A rollout was sampled with other weights than planned.

    What it checks:
        The policy version that the sampler held at each rollout equals the policy's own (synchronous training), or is no older
        than the plan allows (asynchronous training, counted in rollouts): weights were pushed to the engine since the last
        update, or the policy itself generated.

    Why it matters:
        Samples of older weights train as if they were on-policy. It costs reward slowly and raises no error (trl#5312: an
        engine that woke up with old weights).

    What to do:
        Look at the push of weights to the engine: was it made, and after the last update?
    """

    code = "RLS402"
    title = "Sampler held other weights"
    topics = ("sampler",)

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._versions: deque[int] = deque(maxlen=(self.schedule.max_age or 0) + 1)

    def rollout(self, event: Rollout) -> Finding | None:
        """Compare the sampler's version with the oldest that the plan allows."""
        if event.purpose != "training":
            return None
        self._versions.append(event.policy_version)
        if event.sampler_version is None or self.schedule.max_age is None:
            return None
        self.checks += 1
        if self._versions[0] <= event.sampler_version <= event.policy_version:
            return None
        if event.sampler_version == UNSENT:
            observed = (
                "an engine whose weights are those of no push: some were not sent, not loaded, or changed afterwards"
            )
            fix = "compare the names and numbers of tensors that are pushed with those that the engine loads"
        elif event.sampler_version < 0:
            observed = "a sampler that is not the policy being trained"
            fix = "look for code that generates with a copy of the model"
        else:
            behind = event.policy_version - event.sampler_version
            observed = f"a sampler with version {event.sampler_version}, {behind} updates behind"
            fix = "look at the push of weights to the engine: it must come after the last update and before the rollout"
        return self.fail(
            expected=f"a sampler with the weights of version {event.policy_version}{self._older()}",
            observed=observed,
            where=self.progress.where(),
            why="the samples come from other weights than those that train on them, and the ratio does not show it",
            fix=fix,
            variant="unsent" if event.sampler_version == UNSENT else "",
        )

    def _older(self) -> str:
        return f", or of {self._versions[0]} and later" if self._versions[0] != self._versions[-1] else ""


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

    def rollout_values(self, values: RolloutValues, event: Rollout, place: Place) -> Finding | None:
        """Compare the mean gap with the bound."""
        if values.sampler_gap_mean is None:
            return None
        if event.sampler_version is not None and event.sampler_version != event.policy_version:
            return None
        self.checks += 1
        facts = self.progress.started.facts
        kinds = {precision_class(str(facts.get(name, "unknown"))) for name in ("compute_dtype", "engine_dtype")}
        tolerance = SAMPLER_GAP_TOLERANCE["float32" if kinds == {"float32"} else "reduced"]
        if values.sampler_gap_mean <= tolerance:
            return None
        return self.fail(
            expected=f"mean |log-prob difference| at most {tolerance:g}",
            observed=f"mean {values.sampler_gap_mean:.3g}, max {values.sampler_gap_max or 0.0:.3g}",
            where=self.progress.where_at(place, event),
            why="at the same policy version engine and trainer should give nearly the same log-probs",
            fix="compare weights first, then temperature, top-p and the engine's log-prob mode",
        )


class SyncNotAsPlanned(Rule):
    """Weights went to the rollout engine at another time than planned, or not at all.

    What it checks:
        Each push of weights to the engine: after the updates of every rollout (and before the first one, in frameworks that do
        so), with the policy version of that moment. Integers, compared exactly.

    Why it matters:
        An engine that is not updated goes on sampling from old weights. Nothing fails: the ratio is computed from the
        trainer's own log-probs, and rewards rise late or not at all (trl#5312).

    What to do:
        Look at the call that pushes weights: is it made after the updates of each rollout, by every trainer?
    """

    code = "RLS405"
    title = "Weights not pushed as planned"
    topics = ("order", "sampler")
    compares = (WeightSync,)
    nothing_seen = "pushes of weights are not part of this plan"

    def difference(self, difference: Difference) -> Finding | None:
        """Claim a push that is missing, surplus, or of another version."""
        expected, observed = difference.expected, difference.observed
        missing = isinstance(expected, ExpectedSync) and isinstance(observed, Rollout | EpochEnd | RunEnded)
        others = ExpectedMicroBatch | ExpectedUpdate | ExpectedRefresh
        surplus = isinstance(observed, WeightSync) and not isinstance(expected, others | ExpectedSync)
        version = isinstance(observed, WeightSync) and difference.aspect == "version"
        if not (missing or surplus or version):
            return None
        self.checks += 1
        planned = f"a push of version {expected.version}" if isinstance(expected, ExpectedSync) else "no push here"
        made = f"a push of version {observed.policy_version}" if isinstance(observed, WeightSync) else "none"
        return self.fail(
            expected=planned,
            observed=made,
            where=difference.where,
            why="the engine then samples with other weights than the plan says, and the ratio does not show it",
            fix="look at the call that pushes weights to the engine: it must follow the updates of every rollout",
            variant="missing" if missing else "surplus" if surplus else "version",
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

    def update_values(self, values: UpdateValues, event: Update, place: Place) -> Finding | None:
        """Look at the movement since the last update."""
        if event.role == "critic":
            return None
        if event.index == 0 or self.progress.updates < 2:
            return None
        self.checks += 1
        if not values.moved_before:
            return None
        return self.fail(
            expected="the weights that the last update left",
            observed=f"{values.moved_before} of {values.probed} probed weights have other values",
            where=self.progress.where_at(place, event),
            why="something other than the optimizer wrote into the policy",
            fix="look for callbacks and engines that write into the model's parameters",
        )
