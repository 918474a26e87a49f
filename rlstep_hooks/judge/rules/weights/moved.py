"""Weights that something other than an update changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.judge.rules.certain import ValueRule
from rlstep_hooks.judge.rules.precision import how_far

if TYPE_CHECKING:
    from rlstep_hooks.judge.rules.progress import Place
    from rlstep_hooks.planning.finding import Finding, Where
    from rlstep_hooks.record.events import (
        MicroBatch,
        MicroBatchValues,
        Rollout,
        RolloutValues,
        Update,
        UpdateValues,
    )

REFERENCE_GAP = {"float32": 1e-3, "reduced": 0.05}
"""Mean |policy - reference| of log-probs of equal weights that rounding explains; RLS403 has the same bounds."""


class ReferenceMoved(Rule):
    """The weights of the reference changed.

    What it checks:
        A checksum, or a probe, of the reference's weights at each rollout equals that of the first one. Exact. In TRL also that
        they are not the policy's own tensors; and with `sync_ref_model`, that they change between two rollouts if a sync was due.

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
        - The reference of TRL and verl is probed, OpenRLHF's gets a checksum; in other systems it is not evaluated.
        - In TRL some rollouts are compared: the first eight, and later one of 13.
        - A reference that is an adapter switched off has the base weights, which no update touches: it is not looked
          at, nor one that is sharded.
        - With `sync_ref_model` it is compared whether weights moved, not how far.
        - Whether the first weights are those of the policy is RLS414.

    Sources:
        - https://arxiv.org/abs/2203.02155: the KL penalty of InstructGPT
        - https://huggingface.co/docs/trl/grpo_trainer: sync_ref_model, where a reference that moves is wanted
    """

    code = "RLS411"
    title = "Reference changed"
    topics = ("samples", "reference")
    nothing_seen = "there is no reference model of its own"

    def rollout(self, event: Rollout) -> Finding | None:
        """Look at the comparison of checksums."""
        if event.reference_intact is None:
            return None
        return self._compare(event.reference_intact, self.progress.where())

    def rollout_values(self, values: RolloutValues, event: Rollout, place: Place) -> Finding | None:
        """Look at the comparison of probed weights."""
        if values.reference_changed is None:
            return None
        where = self.progress.where_at(place, event)
        if values.reference_shared:
            self.checks += 1
            return self.fail(
                expected="a reference with weights of its own",
                observed="the policy's own tensors",
                where=where,
                why="the KL term compares the policy with itself, and holds nothing back",
                fix="give the trainer a copy of the policy as its reference, or none so that it makes one",
                variant="shared",
            )
        if values.reference_due is None:
            return self._compare(not values.reference_changed, where)
        self.checks += 1
        if values.reference_changed or not values.reference_due:
            return None
        return self.fail(
            expected="a reference that followed the policy since the rollout before, as configured",
            observed="the same weights",
            where=where,
            why="the KL term holds the policy near a reference that is older than configured",
            fix="look for the callback that syncs the reference: is it there, and has it this reference?",
            variant="not synced",
        )

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


class ReferenceNotThePolicy(ValueRule):
    """The reference is not the policy that training began with.

    What it checks:
        Before the first update, the log-probs of policy and reference on the same tokens: their mean distance is within what rounding
        explains, 0.001 in float32 and 0.05 in reduced precision. 100 times as far is an error.

    Why it matters:
        A reference that was loaded from somewhere else pulls the policy towards another model from the first update on. The KL
        that is logged begins high, and nothing else shows it.

    Example:
        ERROR RLS414 Reference is not the first policy · data epoch 0, rollout 0,
        update 0, micro-batch 0
          expected  mean |policy - reference| of the log-probs at most 0.001 before
                    the first update
          observed  mean 0.62
          why       the reference has other weights than the policy began with, or
                    computes its log-probs in another way
          fix       compare the paths and the precision of both models, and what
                    changed the policy after it was loaded

    What to do:
        Compare the paths, and look at what was done to the policy after it was loaded: TRL loads the reference from the policy's
        path, not from the model in memory.

    Known limits:
        - TRL's GRPOTrainer and RLOOTrainer, in the first training call of a trainer and in a run that begins at update 0: later
          the policy has moved on.
        - With adapters the reference may be the base model, and with dropout both forwards differ: then it is not compared.

    Sources:
        - https://arxiv.org/abs/2203.02155: the KL penalty against the model that training began with
        - https://huggingface.co/docs/trl/grpo_trainer: where the reference comes from
    """

    code = "RLS414"
    title = "Reference is not the first policy"
    topics = ("log_ratio",)
    nothing_seen = "no log-probs of a reference came with tokens that were trained before the first update"
    optional = True
    several = 1

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch, place: Place) -> Finding | None:
        """Look at the distance in a loss."""
        if values.reference_gap is None:
            return None
        return self._compare(values.reference_gap, self.progress.where_at(place, event))

    def rollout_values(self, values: RolloutValues, event: Rollout, place: Place) -> Finding | None:
        """Look at the distance in a rollout whose rewards take it."""
        if values.reference_gap is None:
            return None
        return self._compare(values.reference_gap, self.progress.where_at(place, event))

    def _compare(self, gap: float, where: Where) -> Finding | None:
        facts = self.progress.started.facts
        if facts.get("dropout_modules") or facts.get("trained_before"):
            return None
        self.checks += 1
        tolerance = REFERENCE_GAP[self.progress.precision]
        if gap <= tolerance:
            return None
        return self.fail_by(
            gap / tolerance,
            expected=f"mean |policy - reference| of the log-probs at most {tolerance:g} before the first update",
            observed=f"mean {gap:.3g}",
            where=where,
            degree=how_far(gap, tolerance),
            why="the reference has other weights than the policy began with, or computes its log-probs in another way",
            fix="compare the paths and the precision of both models, and what changed the policy after it was loaded",
        )


class WeightsMovedBetweenUpdates(Rule):
    """Weights changed where no update was made.

    What it checks:
        The probed weights before each optimizer step equal, bit for bit, their values after the step before it. In TRL also that
        torch counted no in-place write to them in between, even if the old values were put back: that is a warning.

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
        - What is written and written back between two updates is seen in TRL only, and not what goes through `.data`, which torch
          does not count. RLS412 sees weights that were swapped while the policy generates.
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
            return self._written(event, self.progress.where_at(place, event)) if event.written else None
        return self.fail(
            expected="the weights that the last update left",
            observed=f"{values.moved_before} of {values.probed} probed weights have other values",
            where=self.progress.where_at(place, event),
            why="something other than the optimizer wrote into the policy",
            fix="look for callbacks and engines that write into the model's parameters",
        )

    def _written(self, event: Update, where: Where) -> Finding | None:
        return self.fail(
            expected="no write to the policy's weights but the optimizer's",
            observed=f"{event.written} of the probed tensors were written to, and have their values again",
            where=where,
            why="something swapped the weights between two updates; what ran in between ran with other weights",
            fix="look for averages that are swapped in for an evaluation, and for engines that share the tensors",
            severity="warning",
            variant="put back",
        )


class GeneratedWithOthers(Rule):
    """The policy generated with other weights than its last update left.

    What it checks:
        The probed weights at the first forward of a training rollout, bit for bit against those after the update before it. Only
        where the trained model itself generates, in the first eight rollouts and every 13th later.

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
