"""What policy and reference gave a row in training beside a forward of that row alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.effects import lasting
from rlstep_hooks.judge.rules.certain import ValueRule
from rlstep_hooks.judge.rules.precision import how_far
from rlstep_hooks.judge.rules.ratio.values import MEAN_TOLERANCE

if TYPE_CHECKING:
    from rlstep_hooks.record.events import MicroBatch, MicroBatchValues, Rollout, RolloutValues


class ScoredOtherwise(ValueRule):
    """The log-probs of a row are not those that a forward of this row alone gives.

    What it checks:
        In one micro-batch of a compared cycle, two rows are scored again by the same weights, one at a time, without padding and
        without neighbours: the one with the most padding in TRL, the one with the longest completion elsewhere, and another. The
        mean distance of the loss's log-probs from those, and at lag 0 that of the old log-probs, is within what rounding explains,
        0.0001 in float32 and 0.05 in reduced precision. In verl rows are scored where old log-probs are computed, and rows of two
        micro-batches more before they are trained, so that later updates are looked at too. 100 times as far three times is an
        error. Where one of the usual mistakes gives the same log-probs, it is named: the fewer tokens share the distance, the
        nearer it must come, because a single number is met by many mistakes. In TRL and verl the entropies that came with
        the loss's log-probs are compared too, within the same tolerance of their mean; in OpenRLHF some of those that an entropy
        bonus takes, with the logits of the same forward, within 0.0001. In OpenRLHF and verl the values that the critic gives
        two rows for advantages and targets, and in OpenRLHF the rewards that a reward model gives two rows, are compared with
        those of its layers and head for the row alone.

    Why it matters:
        Old log-probs and those of the loss may be wrong in the same way: their ratio is 1, no metric moves, and the gradient is that
        of other tokens.

    Example:
        WARNING RLS314 Log-probs are not those of the row alone · data epoch 0,
        rollout 2, update 4, micro-batch 8
          expected  log-probs of the loss as a forward of the row alone gives them,
                    within 0.0001 on average in float32
          observed  0.03 away on average, 0.2 at most, 0.18 in the 99th percentile;
                    7.50% of the tokens are outside of [0.9, 1.1]
          why       these are its log-probs under another forward: attention mask:
                    the padding before the prompt is attended to
          fix       compare what the model is given in training (input_ids,
                    attention_mask, position_ids) with one row of the batch alone

    What to do:
        Follow the cause that is named. Where none is, look for what only a batch has: padding, packing, position ids, chunks of the
        head, and for noise or another precision in one of the forwards.

    Known limits:
        - Only models of transformers' own classes, because others may keep something of each forward, and none whose modules have
          forward hooks of somebody else.
        - Not with dropout or NEFTune, images or a compiled model. Log-probs of the reference are RLS315's.
        - Where weights are gathered for each forward (FSDP2, ZeRO-3), no process can make one of its own without the others.
          There the rows go beside training's forward of their batch: each module with weights is applied to them right after
          training has used it, while its weights are gathered, and nobody waits. Of the usual mistakes those are named that
          lie behind the layers, and padding that is attended to. Not where a module has weights beside modules with weights,
          nor where somebody's own forward was put on one and the row has other log-probs.
        - A mistake in the model's layers themselves is in both forwards.
        - A constant shift of all position ids changes nothing in a model with rotary positions, and is no finding there.
        - Models with absolute positions, such as GPT-2, are found rightly where the training forward gives no positions and prompts
          are padded on the left.

    Sources:
        - https://github.com/huggingface/trl/issues/6789: a mean of 0 while rounding takes 7.5 % of the tokens out of [0.9, 1.1]
        - https://github.com/huggingface/trl/pull/2708: log-probs without the attention mask
    """

    code = "RLS314"
    title = "Log-probs are not those of the row alone"
    topics = ("clean_forward", "log_ratio")
    nothing_seen = "no row was scored alone"
    optional = True
    needs = (
        *("microbatch_values.clean_gap", "microbatch_values.entropy_gap"),
        *("critic_microbatch_values.clean_gap", "rollout_values.clean_gap"),
    )
    # Text is judged by the entropies that its loss computed.
    produces = (lasting("RLS413"),)

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Compare the mean distances with the tolerance."""
        self._compare(values)
        self._compare_entropies(values)

    def rollout_values(self, values: RolloutValues, event: Rollout) -> None:
        """Compare the mean distance with the tolerance, where old log-probs are compared when they are computed."""
        self._compare(values)

    def rollout(self, event: Rollout) -> None:
        """Compare the distance of a model's reward, over its size, with the tolerance."""
        gap = event.reward_clean_gap
        tolerance = MEAN_TOLERANCE[self.progress.precision]
        if gap is None or self.holds(gap <= tolerance):
            return
        self.fail_by(
            gap / tolerance,
            expected=f"rewards as a forward of the row alone gives them, within {tolerance:g} of their size in "
            f"{self.progress.compute_dtype}",
            observed=f"{gap:.2g} of their size away",
            variant=f"rewards {event.reward_clean_like}",
            degree=how_far(gap, tolerance),
            why=f"these are {event.reward_clean_like}"
            if event.reward_clean_like
            else "layers and head of the reward model give the row others alone, by none of the usual mistakes",
            fix="look at the reward model's forward: what it reads, at which token, and what is done with what it gives",
        )

    def critic_microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Compare the mean distance of the critic's values, over their mean, with the tolerance."""
        if values.clean_gap is None:
            return
        tolerance = MEAN_TOLERANCE[self.progress.precision]
        if self.holds(values.clean_gap <= tolerance):
            return
        self.fail_by(
            values.clean_gap / tolerance,
            expected=f"values as a forward of the row alone gives them, within {tolerance:g} of their mean in "
            f"{self.progress.compute_dtype}",
            observed=f"{values.clean_gap:.2g} of their mean away on average",
            variant=f"values {values.clean_like}",
            degree=how_far(values.clean_gap, tolerance),
            why=f"these are {values.clean_like}"
            if values.clean_like
            else "layers and head of the critic give the row others alone, by none of the usual mistakes",
            fix="look at the critic's forward, and at what is done with what it gives, before advantages and targets take it",
        )

    def _compare_entropies(self, values: MicroBatchValues) -> None:
        if values.entropy_gap is None:
            return
        exact = values.entropy_exact
        tolerance = MEAN_TOLERANCE["float32" if exact else self.progress.precision]
        if self.holds(values.entropy_gap <= tolerance):
            return
        by = "the logits of the same forward give them" if exact else "a forward of the row alone gives them"
        dtype = "float32" if exact else self.progress.compute_dtype
        self.fail_by(
            values.entropy_gap / tolerance,
            expected=f"entropies of the loss as {by}, within {tolerance:g} of their mean in {dtype}",
            observed=f"{values.entropy_gap:.2g} of their mean away on average",
            variant=f"entropies {values.entropy_like}",
            degree=how_far(values.entropy_gap, tolerance),
            why=f"the loss has {values.entropy_like or 'others, by none of the usual mistakes'}; the entropy bonus, and the choice of "
            "tokens by their entropy, go by them",
            fix="look at what computes the entropies, or changes them before the loss takes them",
        )

    def _compare(self, values: MicroBatchValues | RolloutValues) -> None:
        if values.clean_gap is None:
            return
        tolerance = MEAN_TOLERANCE[self.progress.precision]
        if self.holds(values.clean_gap <= tolerance):
            return
        what = "log-probs of the loss" if values.clean_of == "the loss" else values.clean_of.removeprefix("the ")
        self.fail_by(
            values.clean_gap / tolerance,
            expected=f"{what} as a forward of the row alone gives them, within {tolerance:g} on average in "
            f"{self.progress.compute_dtype}",
            observed=f"{values.clean_gap:.2g} away on average, {values.max_clean_gap or 0.0:.2g} at most, "
            f"{values.clean_gap_99 or 0.0:.2g} in the 99th percentile; {values.clean_outside or 0.0:.2%} of the tokens are outside "
            "of [0.9, 1.1]",
            variant=values.clean_like,
            degree=how_far(values.clean_gap, tolerance),
            why=f"these are its log-probs under another forward: {values.clean_like}"
            if values.clean_like
            else "the same weights give the row other probabilities in the batch than alone, by none of the usual mistakes",
            fix="compare what the model is given in training (input_ids, attention_mask, position_ids) with one row of the batch alone",
        )


class ReferenceScoredOtherwise(ValueRule):
    """The log-probs of the reference are not those that the reference gives a row alone.

    What it checks:
        Two rows of one micro-batch of a compared cycle in GRPO, of the rollout in RLOO, and of one call of the reference in verl,
        are scored again by the reference, one at a time, without padding, without neighbours, and without dropout. The mean
        distance of the log-probs that training takes is within what rounding explains, 0.0001 in float32 and 0.05 in reduced
        precision. 100 times as far three times is an error. Where one of the usual mistakes gives the same log-probs, it is named.
        With adapters the reference is the policy with them switched off, as TRL and verl document it. In OpenRLHF rows are scored
        in the process of the reference, as log-probs leave it. In TRL log-probs that are the policy's own, bit for bit, although
        both models give a row other ones, are an error however near they are.

    Why it matters:
        The KL term pulls the policy towards whatever these numbers are. Nobody sees in a metric that they are those of other tokens,
        or the policy's own, with which the KL is 0 and holds nothing.

    Example:
        WARNING RLS315 Log-probs are not those of the reference · data epoch 0,
        rollout 2, update 4, micro-batch 8
          expected  log-probs of the reference as its forward of the row alone gives
                    them, within 0.0001 on average in float32
          observed  0.03 away on average, 0.2 at most
          why       these are its log-probs under another forward: attention mask:
                    the padding before the prompt is attended to
          fix       look at the forward that scores the reference: which model,
                    which adapters and which mode, and what is done with what it
                    gives

    What to do:
        Follow the cause that is named. Where none is, compare what the reference is given (input_ids, attention_mask) with one row of
        the batch alone, and look for dropout and for another precision.

    Known limits:
        - The limits of RLS314 are those of this rule too.
        - Where rows go beside a forward of the reference (FSDP2, ZeRO-3), its log-probs are not compared bit for bit with the policy's.
        - With adapters that are switched off, not where the model below them has dropout, nor with NEFTune. Dropout of the adapters
          themselves is no hindrance, but for a comparison bit for bit with the policy.
        - Whether the reference has the weights that it should have is what RLS411 and RLS414 check.

    Sources:
        - https://huggingface.co/docs/trl/grpo_trainer: the KL term of the loss
        - https://huggingface.co/docs/trl/peft_integration: a reference that is the policy without its adapters
    """

    code = "RLS315"
    title = "Log-probs are not those of the reference"
    topics = ("clean_reference", "log_ratio")
    nothing_seen = "no row was scored alone by a reference"
    optional = True
    needs = ("microbatch_values.reference_clean_gap", "rollout_values.reference_clean_gap")

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Compare the mean distance with the tolerance, and the reference with the policy."""
        self._compare(values)

    def rollout_values(self, values: RolloutValues, event: Rollout) -> None:
        """Compare the mean distance with the tolerance, and the reference with the policy, where rewards take the reference."""
        self._compare(values)

    def rollout(self, event: Rollout) -> None:
        """Compare the mean distance with the tolerance, where a reference has processes of its own."""
        self._compare(event)

    def _compare(self, values: MicroBatchValues | RolloutValues | Rollout) -> None:
        gap = values.reference_clean_gap
        if gap is None:
            return
        tolerance = MEAN_TOLERANCE[self.progress.precision]
        fix = (
            "look at the forward that scores the reference: which model, which adapters and which mode, and what is done with what it "
            "gives"
        )
        if not self.holds(gap <= tolerance):
            self.fail_by(
                gap / tolerance,
                expected=f"log-probs of the reference as its forward of the row alone gives them, within {tolerance:g} on average in "
                f"{self.progress.compute_dtype}",
                observed=f"{gap:.2g} away on average, {values.reference_clean_max or 0.0:.2g} at most",
                variant=values.reference_clean_like,
                degree=how_far(gap, tolerance),
                why=f"these are its log-probs under another forward: {values.reference_clean_like}"
                if values.reference_clean_like
                else "the reference gives the row other log-probs alone, by none of the usual mistakes",
                fix=fix,
            )
        elif getattr(values, "reference_is_policy", None):
            self.fail(
                severity="error",
                expected="log-probs of the reference that differ from the policy's, as forwards of both of the row alone do",
                observed="the policy's, bit for bit",
                why="the policy scored the row in the place of the reference, so the KL is 0 and holds nothing",
                fix=fix,
            )
