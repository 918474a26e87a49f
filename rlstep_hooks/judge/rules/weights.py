"""RLS4xx: weights, and the weights that the sampler holds."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.base import RolloutsWithSignal, Rule
from rlstep_hooks.judge.rules.precision import precision_class
from rlstep_hooks.judge.timeline import ExpectedMicroBatch, ExpectedRefresh, ExpectedSync, ExpectedUpdate
from rlstep_hooks.record.events import EpochEnd, Rollout, RunEnded, WeightSync

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


DEAD_ROLLOUTS = 3
"""Rollouts with signal whose updates all left the probed weights without a gradient, before it is reported in mid-run. One is not
enough: the first update of a LoRA adapter has no gradient in half of its tensors."""


class NothingLearned(Rule):
    """Updates are made, and none of them trains the weights.

    What it checks:
        Where a rollout has advantages other than 0 and the learning rate is above 0, some probed weight has a gradient at one of
        its updates. It fails after three such rollouts in a row without any, and at the end of a run if no update at all changed
        a probed weight, whatever the reason.

    Why it matters:
        The loop, the logs and the learning rate go on, and the weights that are saved are the weights that were loaded (or have
        only decayed). Causes seen: gradients that are set to zero before the step, a loss that is detached from the model, an
        optimizer that holds copies of the parameters, updates that are all lost in the rounding of the weights.

    What to do:
        Print `p.grad` of a trainable parameter right before the optimizer's step. If it is there, compare the optimizer's
        parameters with the model's, and the size of an update with the precision of the weights.
    """

    code = "RLS406"
    title = "Nothing was learned"
    topics = ("weights",)
    nothing_seen = "fewer than two probed updates had a learning rate above 0 and a rollout whose advantages are known to differ from 0"

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._signal = RolloutsWithSignal()
        """Those since the latest gradient."""
        self._dead: dict[int, tuple[Update, Place]] = {}
        """The first update without a gradient of each rollout since the latest gradient."""
        self._latest_alive = -1
        self._updates = 0
        self._changed = False
        self._first: tuple[Update, Place] | None = None

    def rollout_values(self, values: RolloutValues, event: Rollout, place: Place) -> Finding | None:
        """Remember whether there is something to learn from a rollout."""
        self._signal.add(values, event, place)
        return None

    def update_values(self, values: UpdateValues, event: Update, place: Place) -> Finding | None:
        """Look for a gradient, and for a change."""
        if event.role != "policy" or not event.applied or not event.learning_rate or not values.probed:
            return None
        rollout = place[0] - 1
        self._updates += 1
        self._first = self._first or (event, place)
        self._changed = self._changed or values.changed > 0 or values.moved_before > 0
        if values.with_gradient or values.moved_before:  # what moved between updates was trained in another way
            self.checks += bool(self._signal.numbers)
            self._latest_alive = rollout
            self._dead.clear()
            self._signal.forget_to(rollout)
            return None
        if rollout > self._latest_alive:
            self._dead.setdefault(rollout, (event, place))
        whole = [number for number in self._signal.numbers if number in self._dead and number < rollout]
        return self._report_no_gradient(whole) if len(whole) >= DEAD_ROLLOUTS else None

    def ended(self, event: RunEnded) -> Finding | None:
        """Judge the run as a whole."""
        dead = [number for number in self._signal.numbers if number in self._dead]
        if len(dead) > 1:
            return self._report_no_gradient(dead)
        if self._changed or self._updates < 2 or not self._signal.any or self._first is None:
            return None
        self.checks += 1
        return self.fail(
            expected=f"some probed weight changes in {self._updates} updates with a learning rate above 0",
            observed="none changed in the whole run",
            where=self.progress.where_at(self._first[1], self._first[0]),
            why="the weights at the end are those at the beginning, though the advantages gave something to learn",
            fix="compare the optimizer's parameters with the model's, and the size of an update with the precision of the weights",
            variant="change",
        )

    def _report_no_gradient(self, rollouts: list[int]) -> Finding | None:
        self.checks += 1
        event, place = self._dead[rollouts[0]]
        self._dead.clear()
        self._signal.forget_to(rollouts[-1])
        return self.fail(
            expected="a gradient in some probed weight at an update on a rollout whose advantages differ from 0",
            observed=f"none at any update on {len(rollouts)} such rollouts in a row",
            where=self.progress.where_at(place, event),
            why="the optimizer steps on gradients that are 0 or missing, so these updates teach the policy nothing",
            fix="look for code that zeroes gradients before the step, detaches the loss, or computes it with another model",
            variant="gradient",
        )


class OptimizerHoldsOthers(Rule):
    """The optimizer does not hold the parameters of the model that is trained.

    What it checks:
        The tensors in the optimizer's groups against the model's trainable parameters, by identity, when training begins. It fails
        when the optimizer holds none of them and the probed weights do not change either (an optimizer with copies of its own that
        it writes back is fine), and warns when some trainable parameters are in no group.

    Why it matters:
        An optimizer that was built before the model was moved, wrapped or copied goes on training the old tensors. Loss, gradient
        norm and learning rate look right, and the model stays as it was. Parameters that nobody put into the optimizer stay as
        they are too, though they cost gradients.

    What to do:
        Build the optimizer from the model that is trained, after it is wrapped; set `requires_grad=False` on what shall be frozen.
    """

    code = "RLS407"
    title = "Optimizer holds other parameters"
    topics = ("weights",)
    nothing_seen = "the optimizer's parameters could not be compared with the model's"

    def update_values(self, values: UpdateValues, event: Update, place: Place) -> Finding | None:
        """Look at the optimizer's parameters, with the evidence of the first update that must show."""
        tensors = self.progress.started.facts.get("optimizer_tensors")
        if self.checks or tensors is None or event.role != "policy" or not event.applied or not event.learning_rate:
            return None
        self.checks += 1
        trainable, held, others = tensors["trainable"], tensors["held"], tensors["others"]
        if held == trainable or (not held and values.changed):
            return None
        return self.fail(
            expected=f"the model's {trainable} trainable tensors in the optimizer",
            observed=f"{held} of them, and {others} other tensors",
            where=self.progress.where_at(place, event),
            why=(
                "these tensors get gradients, and no update ever changes them"
                if held
                else "the optimizer trains tensors that are not the model's, and no probed weight of the model changed"
            ),
            fix=(
                "put them into the optimizer, or set requires_grad=False on what shall be frozen"
                if held
                else "build the optimizer from the parameters of the model that is trained, after it is moved and wrapped"
            ),
            severity="warning" if held else "error",
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
    topics = ("sampler", "sampler_weights")
    nothing_seen = "no rollout showed which weights its sampler held"

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
        unknown = event.sampler_version < 0
        return self.fail(
            expected=f"a sampler with the weights of version {event.policy_version}{self._older()}",
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
    topics = ("sampler", "sampler_weights")
    nothing_seen = "no rollout came with both the sampler's log-probs and the trainer's own of the same weights"

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


class SamplingSettings(Rule):
    """Tokens are sampled with other settings than configured.

    What it checks:
        The settings that change which token is sampled (temperature, top-p, top-k, min-p, penalties, forbidden tokens), as they
        are in force when the sampler generates, against those of the configuration. Where the observer can read both.

    Why it matters:
        Log-probs of the loss are those of the whole distribution at the configured temperature. Samples that were cut off or
        penalised come from another one: exploration is narrower than you think, and every ratio against the sampler is off by the
        same amount (a top-p of 0.9 is a log ratio of up to -ln 0.9 = 0.105).

    What to do:
        Set the value that is named in the configuration if you want it, or put the sampler's own defaults back: with transformers
        these come from the model's `generation_config`.
    """

    code = "RLS408"
    title = "Sampled with other settings"
    topics = ("sampler",)
    nothing_seen = "the settings in force when tokens are sampled could not be seen"

    def rollout(self, event: Rollout) -> Finding | None:
        """Compare the settings that were in force for this rollout."""
        sampling = self.progress.started.facts.get("sampling")
        if event.purpose != "training" or sampling is None:
            return None
        self.checks += 1
        differing = {name: (configured, used) for name, (configured, used) in sampling["differing"].items()}
        if not differing:
            return None
        of_model = sampling["of_model"]
        return self.fail(
            expected=", ".join(f"{name} {configured}" for name, (configured, _) in differing.items()),
            observed=", ".join(f"{name} {used}" for name, (_, used) in differing.items()),
            why=(
                f"the model's own generation_config has {', '.join(of_model)}, and generation takes it from there"
                if of_model
                else "something between the configuration and the sampler changes them"
            ),
            fix=(
                "reset these fields of model.generation_config before training, or write the values into the configuration"
                if of_model
                else "look for code that changes the sampler's settings after they were read from the configuration"
            ),
            variant=",".join(differing),
        )
