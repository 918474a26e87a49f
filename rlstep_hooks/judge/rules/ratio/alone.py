"""What training computed for a row beside a forward of that row alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.certain import ValueRule
from rlstep_hooks.judge.rules.precision import how_far
from rlstep_hooks.judge.rules.ratio.values import MEAN_TOLERANCE

if TYPE_CHECKING:
    from rlstep_hooks.record.events import MicroBatch, MicroBatchValues, Rollout, RolloutValues


class ScoredOtherwise(ValueRule):
    """The log-probs of a row are not those that a forward of this row alone gives.

    What it checks:
        In one micro-batch of a compared cycle, two rows are scored again by the same weights, one at a time, without padding and
        without neighbours: the one with the most padding in TRL, the one with the longest completion elsewhere, and another. The mean
        distance of the loss's log-probs from those, and at lag 0 that of the old log-probs, is within what rounding explains, 0.0001
        in float32 and 0.05 in reduced precision. In verl rows are scored where old log-probs are computed; that the loss's are the
        same at lag 0 is what RLS301 checks. 100 times as far three times is an error. Where one of the usual mistakes gives the same
        log-probs, it is named.

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
        - Not with dropout or NEFTune, images or a compiled model, and not on several processes. In TRL not with FSDP or DeepSpeed, a
          head that is no plain matrix, or capped or scaled logits. Log-probs of the reference are not compared.
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
    needs = ("microbatch_values.clean_gap", "rollout_values.clean_gap")

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Compare the mean distance with the tolerance."""
        self._compare(values)

    def rollout_values(self, values: RolloutValues, event: Rollout) -> None:
        """Compare the mean distance with the tolerance, where old log-probs are compared when they are computed."""
        self._compare(values)

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
