"""RLS4xx: weights, and the weights that the sampler holds."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.judge.rules.precision import how_far, precision_class
from rlstep_hooks.judge.rules.progress import RolloutsWithSignal
from rlstep_hooks.judge.timeline import ExpectedMicroBatch, ExpectedRefresh, ExpectedSync, ExpectedUpdate
from rlstep_hooks.planning.finding import Where
from rlstep_hooks.planning.words import number
from rlstep_hooks.record.events import UNSENT, EpochEnd, Rollout, RunEnded, WeightSync

if TYPE_CHECKING:
    from rlstep_hooks.judge.conformance import Difference
    from rlstep_hooks.judge.rules.progress import Place, Progress
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.events import RolloutValues, RunStarted, Update, UpdateValues

SAMPLER_GAP_TOLERANCE = {"float32": 1e-3, "reduced": 0.05}
"""Largest mean |trainer log-prob - engine log-prob| without a warning.

Reduced precision on either side: NeMo-RL docs/guides/grpo.md, 1.05 multiplicative. float32 on both: two implementations of one
model differ by rounding only; a real vLLM engine on a CPU against verl's trainer stays below 1e-6 (tests/systems/verl), and
the bound leaves three orders of magnitude."""


ROUNDING_GAP = {"float32": 1e-5, "reduced": 1e-3}
"""Distances below these are rounding, whatever they were before."""
SUDDEN = 10.0
"""Times the largest distance so far. Real healthy rollouts on a CPU in bf16 stay within a factor of two of each other
(tests/systems/openrlhf); what grows slowly with training raises what it is compared with."""
ENOUGH_MEASURED = 2
"""Rollouts that tell what is usual."""
TRUNCATION_SHARE = 0.15
"""Relative distance from -ln(top_p) within which the gap is named after it: the tokens that are left have at least that mass."""


class WeightsUnchanged(Rule):
    """An update left the weights as they were.

    What it checks:
        A probe of trainable weights before and after each optimizer step. It fails if no probed weight changed although
        some had a gradient that, times the learning rate, is larger than the rounding of their dtype.

    Why it matters:
        Steps that change nothing look like training: counters, learning rate and loss go on. Causes seen: an optimizer
        that holds other parameters than the model's, frozen parameters, updates lost in the rounding of bf16 weights.

    Example:
        ERROR RLS401 Update changed no weight · data epoch 0, rollout 2, update 5
          expected  some of 9 probed weights with a gradient change (learning rate
                    0.01)
          observed  none of 9 probed weights changed
          why       the optimizer stepped without effect on the model that is
                    trained
          fix       compare the optimizer's parameters with the model's, check
                    requires_grad and the dtype of the weights

    What to do:
        Compare the optimizer's parameters with the model's, and look at `requires_grad`. With low-precision weights
        keep a float32 master copy.

    Known limits:
        - A probe reads up to 256 weights of each of up to four tensors. A fault that leaves all of these alone is not
          seen.
        - Updates whose gradient is too small to show in the dtype of the weights are not compared one by one; RLS406
          looks at all of them together.
        - DeepSpeed's engine steps inside itself in TRL: there it is not evaluated.

    Sources:
        - https://arxiv.org/abs/2506.13814: TrainCheck: silent training errors, among them steps without effect
        - https://docs.pytorch.org/docs/stable/optim.html: build the optimizer after the model is on its device
        - https://github.com/OpenRLHF/OpenRLHF/issues/1297: a saved model that was never trained
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
        Where a rollout has advantages other than 0 and the learning rate is above 0: some probed weight has a gradient
        at one of its updates. The rule fails after three such rollouts in a row without any gradient. It also fails at
        the end of a run if no update at all changed a probed weight, whatever the reason.

    Why it matters:
        The loop, the logs and the learning rate go on, and the saved weights are those that were loaded (or have only
        decayed). Causes seen: gradients that are set to zero before the step, a loss that is detached from the model,
        an optimizer that holds copies of the parameters, updates that are all lost in the rounding of the weights.

    Example:
        ERROR RLS406 Nothing was learned · data epoch 0, rollout 0, update 0 · 3
        times, in rollouts 0, 3 and 6
          expected  a gradient in some probed weight at an update on a rollout whose
                    advantages differ from 0
          observed  none at any update on 3 such rollouts in a row
          why       the optimizer steps on gradients that are 0 or missing, so these
                    updates teach the policy nothing
          fix       look for code that zeroes gradients before the step, detaches
                    the loss, or computes it with another model

    What to do:
        Print `p.grad` of a trainable parameter right before the optimizer's step. If it is there, compare the
        optimizer's parameters with the model's, and the size of an update with the precision of the weights.

    Known limits:
        - A probe reads up to 256 weights of each of up to four tensors. A fault that leaves all of these alone is not
          seen.
        - It needs advantages that the observer sees: TRL's GRPO and RLOO trainers, verl and OpenRLHF show them.
          Elsewhere it is not evaluated.
        - DeepSpeed's engine steps inside itself in TRL: there it is not evaluated.

    Sources:
        - https://github.com/OpenRLHF/OpenRLHF/issues/1297: a run that ends well and trained nothing
        - https://github.com/huggingface/trl/issues/3857: runs without a learning signal
        - https://arxiv.org/abs/2106.09685: LoRA: why half of an adapter has no gradient at its first update
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
        The tensors in the optimizer's groups against the model's trainable parameters, by identity, when training
        begins. It fails if the optimizer holds none of them and the probed weights do not change either; an optimizer
        with copies of its own that it writes back is fine. It warns if some trainable parameters are in no group.

    Why it matters:
        An optimizer that was built before the model was moved, wrapped or copied goes on training the old tensors.
        Loss, gradient norm and learning rate look right, and the model stays as it was. Parameters that nobody put into
        the optimizer stay as they are too, though they cost gradients.

    Example:
        ERROR RLS407 Optimizer holds other parameters · data epoch 0, rollout 0,
        update 0
          expected  the model's 290 trainable tensors in the optimizer
          observed  0 of them, and 290 other tensors
          why       the optimizer trains tensors that are not the model's, and no
                    probed weight of the model changed
          fix       build the optimizer from the parameters of the model that is
                    trained, after it is moved and wrapped

    What to do:
        Build the optimizer from the model that is trained, after it is wrapped. Set `requires_grad=False` on what shall
        be frozen.

    Known limits:
        - The observers of TRL and verl compare the tensors. In other systems it is not evaluated.
        - The tensors are compared once. An optimizer that is exchanged later is seen by RLS401 and RLS406.

    Sources:
        - https://docs.pytorch.org/docs/stable/optim.html: move a model before its optimizer is built
        - https://arxiv.org/abs/2506.13814: TrainCheck: optimizers that hold other parameters
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
        The policy version that the sampler held at each rollout equals the policy's own (synchronous training), or is
        no older than the plan allows (asynchronous training, counted in rollouts): weights were synced to the engine
        since the last update, or the policy itself generated.

    Why it matters:
        Samples of older weights are trained as if they were on-policy. That costs reward slowly and raises no error
        (trl#5312: an engine that woke up with old weights).

    Example:
        ERROR RLS402 Rollout sampled with other weights · data epoch 0, rollout 2,
        update 4
          expected  a sampler with the weights of version 4
          observed  a sampler with version 3, 1 update behind
          why       the samples come from other weights than those that train on
                    them, and the ratio does not show it
          fix       look at the sync of weights to the engine: it must come after
                    the last update and before the rollout

    What to do:
        Look at the sync of weights to the engine: was it made, and after the last update?

    Known limits:
        - An engine's version is what it was told ("by label only" in the report). Whether it holds these weights is
          proved only where the engine itself is observed, as in OpenRLHF.
        - TRL: with vLLM, the sync is seen and the engine is not. With `rollout_func` or a compiled model, which weights
          sampled is not known.
        - Loops of your own say which version sampled, or nothing; then it is not evaluated.

    Sources:
        - https://github.com/huggingface/trl/issues/5312: an engine that sampled with old weights, with a table of the signs
        - https://github.com/NVIDIA-NeMo/RL/pull/4018: weights up to 17 steps old
        - https://github.com/modelscope/ms-swift/pull/4584: no sync before the first rollout
    """

    code = "RLS402"
    title = "Rollout sampled with other weights"
    topics = ("sampler", "sampler_weights")
    nothing_seen = "the plan does not say which weights sample a rollout"
    cannot_see = "the version of the weights that sampled a rollout was not observed"

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._engine = False
        """Whether an engine of its own samples, which is told new weights."""
        self._versions: deque[int] = deque(maxlen=(self.schedule.max_age or 0) + 1)

    def rollout(self, event: Rollout) -> Finding | None:
        """Compare the sampler's version with the oldest that the plan allows."""
        if event.purpose != "training":
            return None
        self._versions.append(event.policy_version)
        if self.schedule.max_age is None:
            return None
        if event.sampler_version is None:
            self.missed += 1
            return None
        self.checks += 1
        if self._versions[0] <= event.sampler_version <= event.policy_version:
            return None
        if event.sampler_version == UNSENT:
            observed = (
                "an engine whose weights are those of no sync: some were not sent, not loaded, or changed afterwards"
            )
            fix = "compare the names and numbers of tensors that are synced with those that the engine loads"
        elif event.sampler_version < 0:
            observed = "a sampler that is not the policy being trained"
            fix = "look for code that generates with a copy of the model"
        else:
            behind = event.policy_version - event.sampler_version
            observed = f"a sampler with version {event.sampler_version}, {number(behind, 'updates')} behind"
            fix = "look at the sync of weights to the engine: it must come after the last update and before the rollout"
        return self.fail(
            expected=f"a sampler with the weights of version {event.policy_version}{self._older()}",
            observed=observed,
            where=self.progress.where(),
            why="the samples come from other weights than those that train on them, and the ratio does not show it",
            fix=fix,
            variant="unsent" if event.sampler_version == UNSENT else "",
        )

    def weight_sync(self, event: WeightSync) -> Finding | None:
        """Know that there is an engine."""
        self._engine = True
        return None

    def note(self) -> str:
        """An engine's version is what it was told: whether it holds these weights is not proved."""
        return "by label only" if self._engine else ""

    def _older(self) -> str:
        return f", or of {self._versions[0]} and later" if self._versions[0] != self._versions[-1] else ""


class SamplerGap(Rule):
    """The engine's log-probs are far from the trainer's at the same version.

    What it checks:
        Where the engine returns log-probs of the tokens that it sampled: their mean distance from the trainer's at the
        same policy version. The bound is 0.05 in reduced precision and 0.001 where both compute in float32. Once two
        rollouts were measured, the rule also warns at ten times the largest distance so far. Where the distance is that
        of a configured `top_p`, the finding says so.

    Why it matters:
        A distance at equal versions means that the engine computes something else: stale weights behind an equal
        version, another precision, a temperature or a truncation that only one side applies (trl#4159, trl#5312).

    Example:
        WARNING RLS403 Engine and trainer disagree · data epoch 0, rollout 2, update
        4
          expected  mean |log-prob difference| at most 0.05
          observed  mean 0.2, max 3.1
          why       at the same policy version engine and trainer should give nearly
                    the same log-probs
          fix       compare weights first, then temperature, top-p and the engine's
                    log-prob mode

    What to do:
        Compare the weights first, then temperature, top-p and the engine's log-prob mode.

    Known limits:
        - It needs an engine that returns log-probs. verl and OpenRLHF return them if the configuration asks for it, TRL
          if it corrects for the engine.
        - One mean for each rollout is compared. A few wrong tokens among thousands can stay below the bound.
        - A distance that grows slowly from rollout to rollout is compared with itself: only the bound finds it.

    Sources:
        - https://github.com/NVIDIA-NeMo/RL/blob/main/docs/guides/grpo.md: the bound of 1.05 (token_mult_prob_error)
        - https://github.com/huggingface/trl/issues/5312: 0.015 in a healthy run and 0.2 with stale weights
        - https://github.com/huggingface/trl/issues/4159: a temperature that only one side applied
        - https://arxiv.org/abs/2605.14220: a small mismatch can be enough for a collapse
    """

    code = "RLS403"
    title = "Engine and trainer disagree"
    severity = "warning"
    topics = ("sampler", "sampler_weights")
    nothing_seen = "no rollout came with both the sampler's log-probs and the trainer's own of the same weights"
    optional = True

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._measured = 0
        """Rollouts whose distance was right."""
        self._largest = 0.0
        """Among them."""

    def rollout_values(self, values: RolloutValues, event: Rollout, place: Place) -> Finding | None:
        """Compare the mean gap with the bound."""
        if event.sampler_version is not None and event.sampler_version != event.policy_version:
            return None
        if values.sampler_gap_mean is None:
            self.missed += event.purpose == "training"
            return None
        self.checks += 1
        facts = self.progress.started.facts
        kinds = {precision_class(str(facts.get(name, "unknown"))) for name in ("compute_dtype", "engine_dtype")}
        tolerance = SAMPLER_GAP_TOLERANCE["float32" if kinds == {"float32"} else "reduced"]
        gap, usual = values.sampler_gap_mean, self._usual()
        if gap <= min(tolerance, usual * SUDDEN if usual is not None else tolerance):
            self._measured, self._largest = self._measured + 1, max(self._largest, gap)
            return None
        observed = f"mean {gap:.3g}, max {values.sampler_gap_max or 0.0:.3g}"
        where = self.progress.where_at(place, event)
        if gap <= tolerance:
            return self.fail(
                expected=f"mean |log-prob difference| near the {self._largest:.3g} of the rollouts before",
                observed=observed,
                where=where,
                why="at the same policy version the engine suddenly computes something else: with other weights, or other settings",
                fix="look at the sync of weights before this rollout: are all tensors sent and loaded?",
                variant="sudden",
            )
        top_p = facts.get("configured_sampling", {}).get("top_p", 1.0)
        if top_p < 1 and abs(gap + math.log(top_p)) <= TRUNCATION_SHARE * -math.log(top_p):
            return self.fail(
                expected=f"mean |log-prob difference| at most {tolerance:g}",
                observed=f"{observed}, which is -ln {top_p:g}",
                where=where,
                why=f"the engine's log-probs are those of the tokens that top_p {top_p:g} leaves, the trainer's of all",
                fix="sample with top_p 1, or correct with log-probs of the same distribution",
                variant="top_p",
            )
        return self.fail(
            expected=f"mean |log-prob difference| at most {tolerance:g}",
            observed=observed,
            where=where,
            degree=how_far(gap, tolerance),
            why="at the same policy version engine and trainer should give nearly the same log-probs",
            fix="compare weights first, then temperature, top-p and the engine's log-prob mode",
        )

    def _usual(self) -> float | None:
        """The largest distance of the rollouts so far, no less than rounding; None until there are enough of them."""
        facts = self.progress.started.facts
        kinds = {precision_class(str(facts.get(name, "unknown"))) for name in ("compute_dtype", "engine_dtype")}
        least = ROUNDING_GAP["float32" if kinds == {"float32"} else "reduced"]
        return max(self._largest, least) if self._measured >= ENOUGH_MEASURED else None


class SampledOtherwise(Rule):
    """The engine sampled with other settings than configured.

    What it checks:
        Where the engine or the model tells with which settings it samples: those of every rollout (temperature, top_p,
        top_k and the like) equal those of the configuration. Exact.

    Why it matters:
        Samples of another distribution are trained as if the policy had given them. Without importance correction no
        metric shows it, because old and new log-probs are both the trainer's own.

    Example:
        ERROR RLS410 Sampled with other settings · data epoch 1, rollout 2, update 4
          expected  temperature 1
          observed  temperature 0.6
          why       the samples come from another distribution than the policy that
                    is trained on them
          fix       look for code that changes the sampling parameters on their way
                    to the engine

    What to do:
        Look for code that changes the sampling parameters between the configuration and the engine.

    Known limits:
        - OpenRLHF's requests and generation by transformers in TRL tell their settings. With vLLM in TRL, and in verl,
          it is not evaluated.
        - Settings are compared, not distributions. A processor of logits of your own is not seen; RLS403 can show it.

    Sources:
        - https://github.com/huggingface/trl/pull/3029: a temperature that only one side applied
        - https://github.com/huggingface/trl/issues/4159: a temperature of 0.6 that gives ratios of 2
        - https://github.com/PrimeIntellect-ai/prime-rl/pull/697: log-probs divided by the temperature once more
    """

    code = "RLS410"
    title = "Sampled with other settings"
    topics = ("sampler",)
    nothing_seen = "the engine does not tell with which settings it samples"

    def rollout(self, event: Rollout) -> Finding | None:
        """Compare the settings of a training rollout."""
        planned: dict[str, float] = self.progress.started.facts.get("configured_sampling", {})
        if event.purpose != "training" or not event.sampling or not planned:
            return None
        self.checks += 1
        for used in event.sampling:
            others = {name: value for name, value in used.items() if planned.get(name, value) != value}
            if others:
                return self.fail(
                    expected=", ".join(f"{name} {planned[name]:g}" for name in others),
                    observed=", ".join(f"{name} {value:g}" for name, value in others.items()),
                    where=self.progress.where(),
                    why="the samples come from another distribution than the policy that is trained on them",
                    fix="look for code that changes the sampling parameters on their way to the engine",
                )
        return None


class ReferenceMoved(Rule):
    """The weights of the reference changed.

    What it checks:
        A checksum, or a probe, of the reference's weights at each rollout equals that of the first one. Exact.

    Why it matters:
        The KL penalty keeps the policy near its reference. If the reference follows the policy, the penalty stays small
        whatever the policy becomes.

    Example:
        ERROR RLS411 Reference changed · data epoch 0, rollout 2, update 4
          expected  the weights that the reference began with
          observed  other weights
          why       the KL term compares the policy with something that follows it,
                    or with another model than configured
          fix       look for code that loads or copies weights into the reference

    What to do:
        Look for code that loads or copies weights into the reference, or for one model that serves as both.

    Known limits:
        - verl's reference is probed, OpenRLHF's gets a checksum; in other systems it is not evaluated.
        - A reference that is an adapter switched off has the base weights, which no update touches: it is not looked
          at.
        - Whether the first weights are those that you meant is not known.

    Sources:
        - https://arxiv.org/abs/2203.02155: the KL penalty of InstructGPT
        - https://huggingface.co/docs/trl/grpo_trainer: sync_ref_model, where a reference that moves is wanted
    """

    code = "RLS411"
    title = "Reference changed"
    topics = ("samples",)
    nothing_seen = "there is no reference, or its weights are not seen"

    def rollout(self, event: Rollout) -> Finding | None:
        """Look at the comparison of checksums."""
        if event.reference_intact is None:
            return None
        return self._compare(event.reference_intact, self.progress.where())

    def rollout_values(self, values: RolloutValues, event: Rollout, place: Place) -> Finding | None:
        """Look at the comparison of probed weights."""
        if values.reference_changed is None:
            return None
        return self._compare(not values.reference_changed, self.progress.where_at(place, event))

    def _compare(self, intact: bool, where: Where) -> Finding | None:
        self.checks += 1
        if intact:
            return None
        return self.fail(
            expected="the weights that the reference began with",
            observed="other weights",
            where=where,
            why="the KL term compares the policy with something that follows it, or with another model than configured",
            fix="look for code that loads or copies weights into the reference",
        )


class SyncNotAsPlanned(Rule):
    """Weights were synced to the rollout engine at another time than planned, or not at all.

    What it checks:
        Each sync of weights to the engine: after the updates of every rollout (and before the first one, in frameworks
        that do so), with the policy version of that moment. Integers, compared exactly.

    Why it matters:
        An engine that is not updated goes on sampling from old weights. Nothing fails: the ratio is computed from the
        trainer's own log-probs, and rewards rise late or not at all (trl#5312).

    Example:
        ERROR RLS405 Weights not synced to the engine as planned · data epoch 1,
        rollout 2, update 4, micro-batch 8
          expected  a sync of version 4
          observed  no sync
          why       the engine then samples with other weights than the plan says,
                    and the ratio does not show it
          fix       look at the call that syncs weights to the engine: it must
                    follow the updates of every rollout

    What to do:
        Look at the call that syncs weights: does every trainer make it after the updates of each rollout?

    Known limits:
        - TRL syncs when it generates, if weights have changed. Its plan has no syncs of their own, and RLS402 compares
          versions instead.
        - The rule sees that weights were handed over. Whether the engine loaded them is RLS402 and RLS403.

    Sources:
        - https://github.com/huggingface/trl/issues/5312: an engine that woke up with old weights
        - https://github.com/rllm-org/rllm/issues/291: a cache setting that prevents the sync
        - https://github.com/huggingface/trl/issues/3189: a report of a missing sync that was a false alarm
    """

    code = "RLS405"
    title = "Weights not synced to the engine as planned"
    topics = ("order", "sampler")
    compares = (WeightSync,)
    nothing_seen = "weight syncs are not part of this plan"

    def difference(self, difference: Difference) -> Finding | None:
        """Claim a sync that is missing, surplus, early, or of another version."""
        expected, observed = difference.expected, difference.observed
        missing = isinstance(expected, ExpectedSync) and isinstance(observed, Rollout | EpochEnd | RunEnded)
        others = ExpectedMicroBatch | ExpectedUpdate | ExpectedRefresh
        early = isinstance(observed, WeightSync) and difference.aspect == "early"
        surplus = isinstance(observed, WeightSync) and not isinstance(expected, others | ExpectedSync)
        version = isinstance(observed, WeightSync) and difference.aspect == "version"
        if not (missing or early or surplus or version):
            return None
        self.checks += 1
        planned = f"a sync of version {expected.version}" if isinstance(expected, ExpectedSync) else "no sync here"
        made = f"a sync of version {observed.policy_version}" if isinstance(observed, WeightSync) else "no sync"
        if early:
            planned, made = "a sync after the updates of the rollout", f"{made}, before updates of the same rollout"
        return self.fail(
            expected=planned,
            observed=made,
            where=difference.where,
            why="the engine then samples with other weights than the plan says, and the ratio does not show it",
            fix="look at the call that syncs weights to the engine: it must follow the updates of every rollout",
            variant="missing" if missing else "early" if early else "surplus" if surplus else "version",
        )


class WeightsMovedBetweenUpdates(Rule):
    """Weights changed where no update was made.

    What it checks:
        The probed weights before each optimizer step equal, bit for bit, their values after the step before it.

    Why it matters:
        Something other than the optimizer writes into the policy: a checkpoint that is loaded during training, an
        average or a reference that is copied back, an engine that shares the tensors. Every count of versions is then
        wrong.

    Example:
        ERROR RLS404 Weights changed without an update · data epoch 0, rollout 2,
        update 5
          expected  the weights that the last update left
          observed  4 of 9 probed weights have other values
          why       something other than the optimizer wrote into the policy
          fix       look for callbacks and engines that write into the model's
                    parameters

    What to do:
        Look for callbacks and engines that write into the model's parameters.

    Known limits:
        - A probe reads up to 256 weights of each of up to four tensors. A fault that leaves all of these alone is not
          seen.
        - What is written and written back between two updates is not seen.
        - Only the policy is compared, not the critic.
        - DeepSpeed's engine steps inside itself in TRL: there it is not evaluated.

    Sources:
        - https://arxiv.org/abs/2506.13814: TrainCheck: weights that something else changes, among silent errors
        - https://github.com/NovaSky-AI/SkyRL/issues/1680: weights corrupted by a sync
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


class GeneratedWithOthers(Rule):
    """The policy generated with other weights than its last update left.

    What it checks:
        The probed weights at the first forward of each training rollout, bit for bit against those after the update before it. Only
        where the trained model itself generates.

    Why it matters:
        Weights that are swapped for the generation and put back (an average, a frozen copy, weights in another precision) sample from
        another policy than the one that is trained. Before and after the rollout everything looks right.

    Example:
        ERROR RLS412 Generated with other weights · data epoch 0, rollout 1, update
        2
          expected  the weights that the last update left
          observed  1016 probed weights have other values at the first forward of
                    the generation
          why       the rollout is not of the policy that is trained on it
          fix       look for callbacks and wrappers that write into the model around
                    its generation

    What to do:
        Look for callbacks and wrappers that write into the model around its generation.

    Known limits:
        - TRL's GRPOTrainer and RLOOTrainer only, and not with an engine, FSDP or torch.compile.
        - Up to four tensors of 256 weights are compared, at the first forward of a generation.

    Sources:
        - https://github.com/huggingface/trl/issues/5312: rollouts of weights that the trainer does not have
    """

    code = "RLS412"
    title = "Generated with other weights"
    topics = ("weights", "sampler")
    nothing_seen = "no rollout was generated by the trained model itself after an update"
    optional = True

    def rollout_values(self, values: RolloutValues, event: Rollout, place: Place) -> Finding | None:
        """Look at the comparison of a training rollout."""
        if values.weights_differ is None or event.purpose != "training":
            return None
        self.checks += 1
        if not values.weights_differ:
            return None
        return self.fail(
            expected="the weights that the last update left",
            observed=f"{values.weights_differ} probed weights have other values at the first forward of the generation",
            where=self.progress.where_at(place, event),
            why="the rollout is not of the policy that is trained on it",
            fix="look for callbacks and wrappers that write into the model around its generation",
        )


class PartNotTrained(Rule):
    """A part of the model is not trained, and no setting says so.

    What it checks:
        Matrices in the model's numbered layers that carry no gradient although the configuration freezes nothing and
        has no adapter: an error. Trainable tensors that had no gradient in any update of a run: a warning, because an
        input that never comes (images) leaves its part of a model without one.

    Why it matters:
        Layers that are frozen by accident cost memory and time and learn nothing. Reward rises all the same, only less.

    Example:
        ERROR RLS408 Part of the model not trained · the whole run
          expected  all 196 matrices of the layers trained, as no setting freezes
                    any
          observed  49 of them frozen, the first is
                    model.layers.0.self_attn.q_proj.weight
          why       these layers keep their first weights for the whole run
          fix       look for code that sets requires_grad to False, or name the part
                    to train in the configuration

    What to do:
        Look for code that sets `requires_grad`, or that computes a part of the forward without a gradient.

    Known limits:
        - Frozen layers are looked at in verl, and only without LoRA. Tensors without a gradient are counted in verl
          and, one tensor, in OpenRLHF.
        - A mixture of experts may have an expert that no token reaches. That is the warning, not a fault.

    Sources:
        - https://docs.pytorch.org/docs/stable/notes/autograd.html: requires_grad and modes without a gradient
        - https://arxiv.org/abs/2506.13814: TrainCheck: frozen parts among silent errors
    """

    code = "RLS408"
    title = "Part of the model not trained"
    topics = ("weights",)
    nothing_seen = "the observer does not say which tensors are trained"

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._updates = self._ungraded = 0

    def started(self, event: RunStarted) -> Finding | None:
        """Look for layers that are frozen from the start."""
        matrices = event.facts.get("frozen_matrices")
        if matrices is None or not matrices["all"]:
            return None
        self.checks += 1
        if not matrices["frozen"]:
            return None
        return self.fail(
            expected=f"all {matrices['all']} matrices of the layers trained, as no setting freezes any",
            observed=f"{matrices['frozen']} of them frozen, the first is {matrices['first']}",
            why="these layers keep their first weights for the whole run",
            fix="look for code that sets requires_grad to False, or name the part to train in the configuration",
            where=Where(),
            variant="frozen",
        )

    def update_values(self, values: UpdateValues, event: Update, place: Place) -> Finding | None:
        """Follow how many tensors had no gradient so far."""
        if event.role == "policy" and event.applied and values.ungraded is not None:
            self._updates += 1
            self._ungraded = values.ungraded
        return None

    def ended(self, event: RunEnded) -> Finding | None:
        """Judge the run as a whole."""
        if self._updates < 2:
            return None
        self.checks += 1
        if not self._ungraded:
            return None
        return self.fail(
            expected="a gradient in every trainable tensor, at some update",
            observed=f"none in {self._ungraded} tensors at any of {self._updates} updates",
            why="no loss depends on these tensors, or a part of the forward runs without gradient",
            fix="look for requires_grad, torch.no_grad() or detach() in the forward, and for inputs that never come",
            severity="warning",
            variant="without gradient",
        )
