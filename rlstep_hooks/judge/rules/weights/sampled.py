"""Whether the tokens that are trained were drawn from the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.effects import OTHER_FORWARD, of_rollout
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.judge.sampled import SampledTest, Surprisal

if TYPE_CHECKING:
    from rlstep_hooks.judge.rules.progress import Progress
    from rlstep_hooks.record.events import MicroBatch, MicroBatchValues, Rollout, RolloutValues

MARGIN = {"float32": 0.005, "reduced": 0.02}
"""Nats a token that numerical differences between sampler and trainer explain. Logits that are off by random 0.1, as those of bf16
are at most, move the mean by 0.003 (`python -m tests.bench.sampled_text`)."""

NEARLY_GREEDY = 0.2
"""Share of the trainer's temperature under which two moments do not tell one from another."""


class NotDrawnFromPolicy(Rule):
    """The text that is trained was not drawn from the policy.

    What it checks:
        For a token drawn from the policy, -log p minus the entropy of its position has mean 0, whatever came before. The sum over
        the tokens of each rollout, and of the run, at the first update that trains them, is compared with a bound that holds at
        all times with a probability of a false alarm below 1e-6 for the whole run. It needs no log-probs of the sampler. In verl
        the entropies are those that are computed with old log-probs, so that it is the rollout that is judged, whatever its updates
        do.

    Why it matters:
        Text of another temperature, of a truncated distribution, of another template or of another model is trained as if the
        policy had written it. Ratios are those of the trainer with itself, so no metric shows it.

    Example:
        ERROR RLS413 Text not drawn from the policy · data epoch 0, rollout 1,
        update 2, micro-batch 4
          expected  tokens as surprising as the policy's entropy says
          observed  1024 tokens, 0.7 nats a token more probable than that
          why       the policy does not give such text by chance (below 1e-6); a
                    temperature of about 0.47 times the trainer's or a top-p of
                    about 0.9 would
          fix       compare the sampler's temperature, top-p, top-k, min-p and
                    penalties with the trainer's, then template and weights

    What to do:
        Compare temperature, top-p, top-k, min-p and penalties of the sampler with those of the trainer, then the chat template, the
        end of the prompt, and the weights.

    Known limits:
        - A temperature of 0.9 shows within a few thousand tokens. Small random differences of logits do not: their effect is of
          second order. Weights that are stale by a few updates stay unseen; RLS402, RLS403 and RLS412 look for those.
        - Less than 0.005 nats a token in float32 and 0.02 in reduced precision count as rounding.
        - Not where sampling is truncated or penalised on purpose, with tools or environments, with dropout, or where completions
          are left out by what they contain.
        - The temperature and the top-p that are named are estimates from two moments. Other causes can have the same effect.

    Sources:
        - https://doi.org/10.3150/13-BEJ569: Fan, Grama, Liu: the exponential inequality, with the squares that were observed
        - https://arxiv.org/abs/1810.08240: Howard and others: bounds that hold at all times
        - https://github.com/huggingface/trl/issues/4159: a temperature that only one side applied
    """

    code = "RLS413"
    title = "Text not drawn from the policy"
    topics = ("versions", "drawn", "entropies", "log_ratio")
    nothing_seen = "no micro-batch showed the entropies of the distributions that its tokens should be drawn from"
    optional = True
    produces = (of_rollout("RLS403", "RLS519", *OTHER_FORWARD),)
    needs = ("microbatch_values.surprise", "rollout_values.drawn_tokens")

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._test: SampledTest | None = None
        self._version = -1
        self._seen: set[tuple[int, int]] = set()
        """Samples that were counted at this policy version; a second pass shows the same tokens again."""

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Add the tokens of a micro-batch that the policy which sampled them trains on for the first time."""
        if values.surprise is not None and event.sampled_version == event.policy_version and self._are_new(event):
            self._add(values, values.tokens)

    def rollout_values(self, values: RolloutValues, event: Rollout) -> None:
        """Add the tokens of a rollout whose entropies came with its old log-probs, at the version that sampled it."""
        if values.drawn_tokens and event.all_drawn and event.sampler_version == event.policy_version:
            self._add(values, values.drawn_tokens)

    def _add(self, values: MicroBatchValues | RolloutValues, tokens: int) -> None:
        facts = self.progress.started.facts
        if values.surprise is None or values.surprise_squares is None or "surprise_cap" not in facts:
            return
        if self._test is None:
            margin = MARGIN["reduced" if facts.get("sampled_by_engine") else self.progress.precision]
            self._test = SampledTest(cap=facts["surprise_cap"], vocabulary=facts["vocabulary"], margin=margin)
        self.checks += 1
        surprisal = Surprisal(tokens, values.surprise, values.surprise_squares, values.surprise_largest or 0.0)
        proved = self._test.add(self.progress.place_shown[0], surprisal)
        if proved is None:
            return
        self.fail(
            expected="tokens as surprising as the policy's entropy says",
            observed=_observed(proved),
            why=_why(proved),
            fix="compare the sampler's temperature, top-p, top-k, min-p and penalties with the trainer's, then template and weights",
        )

    def _are_new(self, event: MicroBatch) -> bool:
        """Whether no sample of a micro-batch was counted before."""
        if event.trained is None:
            return False
        if event.policy_version != self._version:
            self._version, self._seen = event.policy_version, set()
        samples = {(held.rollout, row) for held in event.trained for row in held.rows}
        new = not samples & self._seen
        self._seen |= samples
        return new


def _observed(proved: Surprisal) -> str:
    more = "more" if proved.mean < 0 else "less"
    return f"{proved.tokens} tokens, {abs(proved.mean):.2g} nats a token {more} probable than that"


def _why(proved: Surprisal) -> str:
    temperature, kept = proved.temperature(), proved.kept()
    fitting = []
    if temperature is not None:
        about = "near 0" if temperature < NEARLY_GREEDY else f"of about {temperature:.2g} times the trainer's"
        fitting.append(f"a temperature {about}")
    if kept is not None:
        fitting.append(f"a top-p of about {kept:.2g}")
    if not fitting:
        fitting.append("another model or another template")
    return f"the policy does not give such text by chance (below 1e-6); {' or '.join(fitting)} would"
