"""Completions that are copies of each other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlstep_hooks.judge.effects import OTHER_FORWARD, of_rollout
from rlstep_hooks.judge.rules.base import Rule

if TYPE_CHECKING:
    from rlstep_hooks.record.events import MicroBatch, MicroBatchValues, Rollout, RolloutValues

PROVED = 30.0
"""Nats beyond which a text is not drawn twice by chance, besides twice the logarithm of the number of samples.

Two given samples are the same text of probability p with at most p. Over all pairs of N samples, a text of at most
exp(-30) / N**2 comes twice with less than exp(-30) / 2, which is 5e-14 a rollout.
"""


class CopiedCompletions(Rule):
    """Completions of a rollout are copies of each other.

    What it checks:
        A completion that another sample of its rollout has, token by token, though the policy gives it a probability of at most
        exp(-30) over the square of the number of samples. Drawn one by one, no such text comes twice (5e-14 a rollout). Short and
        certain answers may: they are not counted. Where an engine draws and its log-probs are apart from the policy's, that distance
        is taken off.

    Why it matters:
        Copies are no samples. Within a group they have the same reward, so nothing is learned from comparing them; across prompts
        they are answers to another question. Means of rewards, lengths and the KL look as they should.

    Example:
        ERROR RLS519 Completions are copies of each other · data epoch 0, rollout 1,
        update 2, micro-batch 4
          expected  completions that were drawn one by one
          observed  3 of 4 equal another of the rollout, token by token
          why       the policy gives one of them a probability of exp(-212), so
                    chance does not repeat it
          fix       look for a seed that each request or generation gets, and for
                    code that writes completions over each other

    What to do:
        Look for one seed that is given to each request of an engine or set before each generation, and for code that writes completions
        over each other: a buffer that samples share, a view where a copy was meant, an index that stays.

    Known limits:
        - Not where sampling is truncated on purpose, with tools or environments, with dropout, or with a replay buffer.
        - Copies on several processes are seen in verl, TRL and ms-swift, among the completions that have the smallest checksums: 256 of
          each process, of each micro-batch in TRL and ms-swift, where it is judged when the run ends and the first 64 compared
          rollouts are read. Where processes draw with the same random numbers, that is RLS523.

    Sources:
        - https://arxiv.org/abs/2402.03300: GRPO samples a group of answers to each question
        - https://docs.vllm.ai/en/latest/api/vllm/sampling_params.html: `seed`, which makes equal requests give equal texts
    """

    code = "RLS519"
    title = "Completions are copies of each other"
    topics = ("versions", "drawn", "log_ratio")
    nothing_seen = "no micro-batch showed how probable its completions are to the policy that sampled them"
    optional = True
    produces = (of_rollout("RLS505", *OTHER_FORWARD),)
    needs = ("microbatch_values.copied", "rollout_values.copied")
    expected = "completions that were drawn one by one"
    fix = "look for a seed that each request or generation gets, and for code that writes completions over each other"

    @staticmethod
    def why(nats: float) -> str:
        """Why copies are none of chance, by -log p of one of them in nats."""
        return f"the policy gives one of them a probability of exp(-{nats:.3g}), so chance does not repeat it"

    def rollout(self, event: Rollout) -> None:
        """Look at the copies that a controller counted."""
        if event.copied is not None and event.purpose == "training":
            copied, nats = event.copied
            self._look(copied, event.samples, nats)

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Look at the copies of a micro-batch that the policy which sampled it trains on."""
        if (
            event.sampled_version == event.policy_version
            and values.copied is not None
            and values.copied_nats is not None
        ):
            self._look(values.copied, event.samples, values.copied_nats)

    def rollout_values(self, values: RolloutValues, event: Rollout) -> None:
        """Look at the copies of a rollout that the policy which sampled it computes old log-probs of."""
        as_sampled = event.all_drawn and event.sampler_version == event.policy_version
        if as_sampled and values.copied is not None and values.copied_nats is not None:
            among = event.samples if event.own_samples is None else event.own_samples
            self._look(values.copied, among, values.copied_nats - nats_apart(values, among))

    def _look(self, copied: int, among: int, nats: float) -> None:
        samples = self.progress.started.schedule.samples_per_rollout if self.progress.started.schedule else 0
        if self.holds(not copied) or nats <= PROVED + 2 * math.log(max(samples or 0, 2)):
            return
        self.fail(
            expected=self.expected,
            observed=f"{copied} of {among} equal another of the rollout, token by token",
            why=self.why(nats),
            fix=self.fix,
        )


def nats_apart(values: RolloutValues, samples: int) -> float:
    """Nats by which an engine may have given one completion a greater probability than the policy does: no more than their log-probs
    are apart over all tokens, nor than as many tokens as a completion has can be."""
    mean, largest, tokens = values.sampler_gap_mean, values.sampler_gap_max, values.sampler_gap_tokens
    if mean is None or largest is None or not tokens or not samples:
        return 0.0
    return min(mean * tokens, largest * tokens / samples)


class RanksDrawAlike(Rule):
    """Two processes draw their samples with the same random numbers.

    What it checks:
        Each process records a checksum of the state of its random generator before the first token of a compared rollout is drawn. No
        two processes may have the same one. Exact. In TRL, where the policy itself generates.

    Why it matters:
        Where the completions of one prompt are drawn by several processes, they are then copies of each other: a group of 8 has 4 or 2
        different samples, and its advantages are those of so few. Elsewhere the samples of the processes are not independent. Counts,
        rewards and losses look as always.

    Example:
        ERROR RLS523 Ranks draw the same samples · rank 1, rollout 0
          expected  random numbers of its own on each of 2 ranks
          observed  rank 1 begins to draw with the random state of rank 0
          why       completions of one prompt on these ranks are copies of each
                    other, and no others are independent
          fix       give each rank a seed of its own: set_seed(seed,
                    device_specific=True), and look for a seed that is set after the
                    trainer is made

    What to do:
        Give each rank a seed of its own. TRL does so when the trainer is made; a script, a callback or a reward function that sets one
        seed on all ranks afterwards takes it back.

    Known limits:
        - It needs the records of all processes, and is judged when the run ends.
        - Engines draw with generators of their own, which are not looked at: what they give is compared by RLS519.

    Sources:
        - https://github.com/huggingface/trl/pull/2824: each process a unique seed, so that completions are no duplicates
        - https://github.com/modelscope/ms-swift/issues/3143: the same mistake in another framework
    """

    code = "RLS523"
    title = "Ranks draw the same samples"
    topics = ("ranks", "samples")
    nothing_seen = "no two processes recorded the state of a generator that samples are drawn with"
    optional = True
