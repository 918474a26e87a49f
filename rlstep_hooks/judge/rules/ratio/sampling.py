"""The forward of the loss beside that of the sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.effects import here, lasting
from rlstep_hooks.judge.rules.apart import BY_MEANS, Distance, tokens_apart
from rlstep_hooks.judge.rules.certain import ValueRule
from rlstep_hooks.judge.rules.ratio.values import MEAN_TOLERANCE

if TYPE_CHECKING:
    from rlstep_hooks.judge.rules.progress import Progress
    from rlstep_hooks.record.events import MicroBatch, MicroBatchValues


class LossAsSampled(ValueRule):
    """The log-probs in the loss are not those with which the same weights drew the tokens.

    What it checks:
        At lag 0, where transformers generates: the log-probs of the tokens when they were drawn, computed from the model's logits at
        the trainer's temperature, beside those of the loss. Their mean distance is within what rounding explains, 0.0001 in float32
        and 0.05 in reduced precision. 100 times as far in three micro-batches is an error. Token by token at most 0.05 % of the
        tokens in float32, 3.3 % in float16 and 26 % in bfloat16 have a ratio outside of [0.9, 1.1], and the 99th percentile of the
        distances is at most 0.005, 0.31 and 2.5, as in RLS301.

    Why it matters:
        With one pass over each rollout there are no old log-probs, and the ratio is 1 by construction: if the training forward runs
        under another precision, with noise, without its adapters or with another mask, no metric shows it.

    Example:
        WARNING RLS313 Log-probs of the loss are not those of sampling · data epoch
        0, rollout 2, update 4, micro-batch 8
          expected  log-probs as they were when the tokens were drawn, within 0.0001
                    on average in float32
          observed  0.009 away on average, 0.28 at most, 0.15 in the 99th
                    percentile; 2.10% of 480 tokens are outside of [0.9, 1.1]
          why       the same weights give the drawn tokens other probabilities in
                    the training forward than in generation
          fix       compare precision, autocast, attention mask, positions, adapters
                    and hooks of the model in training with those in generation

    What to do:
        Look for what is there in only one of the two forwards: autocast, noise on embeddings or logits, an attention mask or position
        ids, adapters that are switched off, a hook of a module.

    Known limits:
        - Not with dropout or NEFTune, in which each forward differs; not with tools or environments, beams, assisted or
          continuous generation.
        - Where a record has the mean alone, a few wrong tokens among thousands can stay below the bound. The report says "by means
          alone" then.
        - The last token of the longest completion of a rollout is left out.
        - Models with absolute positions, such as GPT-2, are found rightly where the training forward gives no positions: a prompt
          that is padded on the left begins at another position than in generation.

    Sources:
        - https://arxiv.org/abs/1707.06347: the gradient is taken at the policy that sampled
        - https://github.com/huggingface/trl/pull/3029: a temperature that one forward left out
        - https://github.com/huggingface/trl/issues/3683: gradient checkpointing that took the context away from generation
    """

    code = "RLS313"
    title = "Log-probs of the loss are not those of sampling"
    topics = ("versions", "drawn_log_probs", "log_ratio")
    nothing_seen = "no micro-batch at lag 0 had the log-probs with which its tokens were drawn"
    optional = True
    produces = (here("RLS408"), lasting("RLS314"))
    needs = ("microbatch_values.sampling_gap",)

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._by_tokens = False
        """Whether single tokens were compared, and not only their mean."""

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Compare the distance with the tolerance, by its mean and by its tokens."""
        gap = values.sampling_gap
        if gap is None:
            return
        tolerance, dtype = MEAN_TOLERANCE[self.progress.precision], self.progress.compute_dtype
        apart = tokens_apart(values.sampling_known, values.sampling_outside, values.sampling_gap_99)
        self._by_tokens = self._by_tokens or apart is not None
        distance = Distance(gap, tolerance, apart, (dtype,))
        if self.holds(distance.right):
            return
        of_mean = f"log-probs as they were when the tokens were drawn, within {tolerance:g} on average"
        self.fail_by(
            distance.times,
            beyond=distance.beyond,
            expected=f"{distance.expected(of_mean)} in {dtype}",
            observed=distance.observed(f"{gap:.2g} away on average, {values.max_sampling_gap or 0.0:.2g} at most"),
            degree=distance.degree,
            variant=distance.variant,
            why="the same weights give the drawn tokens other probabilities in the training forward than in generation",
            fix="compare precision, autocast, attention mask, positions, adapters and hooks of the model in training with those in "
            "generation",
        )

    def note(self) -> str:
        """Whether single tokens were compared."""
        return "" if self._by_tokens else BY_MEANS
