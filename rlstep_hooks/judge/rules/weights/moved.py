"""Weights of the policy that something other than an update changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.effects import OTHER_FORWARD, here, of_rollout
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.planning.words import number

if TYPE_CHECKING:
    from rlstep_hooks.record.events import Rollout, RolloutValues, Update, UpdateValues


class WeightsMovedBetweenUpdates(Rule):
    """Weights changed where no update was made.

    What it checks:
        The probed weights before each optimizer step equal, bit for bit, their values after the step before it; in the cycles of
        rollouts in which the whole model is read, so do all others. In TRL also that torch counted no in-place write to any trained
        tensor in between, even if the old values were put back: that is a warning. And frozen weights and rotary frequencies are what
        they were when training began. In OpenRLHF, where DeepSpeed steps on weights of its own, also those of the model, from its
        last update to each use, and some of each tensor of a reward model, which no update changes.

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
        - Of a critic its use between updates is not looked at, where DeepSpeed steps on weights of its own.
        - torch does not count what is written through `.data`: between the cycles in which the whole model is read, only the probed
          weights show it.
        - Frozen weights are not compared in flat shards, nor where syncs to an engine merge an adapter into them; of buffers only
          rotary frequencies are, where these do not follow the length of the input.
        - RLS412 sees weights that were swapped while the policy generates.

    Sources:
        - https://arxiv.org/abs/2506.13814: TrainCheck: weights that something else changes, among silent errors
        - https://github.com/NovaSky-AI/SkyRL/issues/1680: weights corrupted by a sync
    """

    code = "RLS404"
    title = "Weights changed without an update"
    topics = ("weights",)
    nothing_seen = "fewer than two updates were probed"
    produces = (here("RLS302", "RLS310", "RLS402", "RLS403", "RLS411", "RLS412", *OTHER_FORWARD),)
    needs = ("rollout_values.model_moved",)

    def update_values(self, values: UpdateValues, event: Update) -> None:
        """Look at the movement since the last update."""
        if not values.probed or event.index == 0 or (event.role == "policy" and self.progress.updates < 2):
            return
        role = event.role
        if not self.holds(not values.moved_before and not values.tensors_moved):
            tensors = number(values.tensors_moved, "tensors") + (" has" if values.tensors_moved == 1 else " have")
            moved = f"{values.moved_before} of {values.probed} probed weights have" if values.moved_before else tensors
            self.fail(
                expected="the weights that the last update left",
                observed=f"{moved} other values",
                why=f"something other than the optimizer wrote into the {role}",
                fix="look for callbacks and engines that write into the model's parameters",
                variant="critic" if role == "critic" else "",
            )
        elif event.written:
            again = (
                "and have their values again"
                if values.tensors_moved == 0
                else "and the probed weights are what they were"
            )
            self.fail(
                expected="no write to the policy's weights but the optimizer's",
                observed=f"{event.written} of the trained tensors were written to, {again}",
                why="something wrote to the weights between two updates; what ran in between may have run with other weights",
                fix="look for averages that are swapped in for an evaluation, and for engines that share the tensors",
                severity="warning",
                variant="put back",
            )
        if values.kept_moved is not None and self.any_wrong(values.kept_moved):
            self.fail(
                expected="the frozen weights and rotary frequencies with which training began",
                observed=f"{number(values.kept_moved, 'tensors')} with other values, the first is {values.kept_tensor}",
                why=f"the {role} is another function than the one whose weights are trained and saved",
                fix="look for callbacks, engines and adapters that write into frozen weights or buffers",
                variant="frozen critic" if role == "critic" else "frozen",
            )

    def rollout(self, event: Rollout) -> None:
        """Look at the reward model, where a controller was told of it."""
        if not self.holds(event.reward_model_intact):
            self.fail(
                expected="the weights that the reward model began with",
                observed="other weights",
                why="something wrote into the reward model, so equal answers get other rewards than before",
                fix="look for code that loads, trains or shares the weights of the reward model",
                variant="reward model",
            )

    def rollout_values(self, values: RolloutValues, event: Rollout) -> None:
        """Look at the model, where the optimizer steps on weights of its own."""
        if event.purpose == "training" and self.any_wrong(values.model_moved):
            self.fail(
                expected="the weights that the last update left in the model",
                observed=f"{values.model_moved} probed weights have other values when log-probs are computed, trained or synced",
                why="something other than an update wrote into the policy; the optimizer's own weights do not have it",
                fix="look for callbacks and engines that write into the model's parameters",
                variant="model",
            )


class GeneratedWithOthers(Rule):
    """The policy generated with other weights than its last update left.

    What it checks:
        The probed weights at the first forward of a training rollout, bit for bit against those after the update before it. Only
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

    Sources:
        - https://github.com/huggingface/trl/issues/5312: rollouts of weights that the trainer does not have
    """

    code = "RLS412"
    title = "Generated with other weights"
    topics = ("weights", "sampler")
    nothing_seen = "no rollout was generated by the trained model itself after an update"
    optional = True
    produces = (of_rollout("RLS403", "RLS413", *OTHER_FORWARD),)
    needs = ("rollout_values.weights_differ",)

    def rollout_values(self, values: RolloutValues, event: Rollout) -> None:
        """Look at the comparison of a training rollout."""
        if event.purpose == "training" and self.any_wrong(values.weights_differ):
            self.fail(
                expected="the weights that the last update left",
                observed=f"{values.weights_differ} probed weights have other values at the first forward of the generation",
                why="the rollout is not of the policy that is trained on it",
                fix="look for callbacks and wrappers that write into the model around its generation",
            )
