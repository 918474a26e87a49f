"""Values of the ratio: in the loss and in the logs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from rlstep_hooks.judge.conformance import observed_lag
from rlstep_hooks.judge.effects import here, lasting
from rlstep_hooks.judge.rules.apart import BY_MEANS, Distance, tokens_apart
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.judge.rules.certain import BEYOND_ROUNDING, SEVERAL, ValueRule
from rlstep_hooks.judge.rules.noise import noise_of
from rlstep_hooks.judge.rules.progress import (
    RECENT_UPDATES,
    Place,
    Progress,
    RolloutsWithSignal,
    is_certain,
    may_teach,
    remember,
)
from rlstep_hooks.planning.words import number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.record.events import MicroBatch, MicroBatchValues, Rollout, RolloutValues, RunEnded, Update


MEAN_TOLERANCE = {"float32": 1e-4, "reduced": 5e-2}
"""Largest mean |log ratio| at lag 0 that rounding explains.

Reduced precision: NVIDIA NeMo-RL's GRPO guide calls a multiplicative token probability error above 1.05 a potential framework
issue (docs/guides/grpo.md, token_mult_prob_error), that is a mean |log ratio| of about 0.05. float32: two forwards of the same
tokens in batches of another shape differ by some units in the last place of the logits; measured healthy runs stay below 1e-6
(tests/systems/trl), and the bound leaves two orders of magnitude for deeper models and TF32-free GPU kernels.
"""


LOGGED_TOLERANCE = 0.1
"""Largest relative distance of a logged mean ratio. One process differs less from the mean of all; known faults halve it."""


VISIBLE_CHANGE = {"float32": 1e-7, "reduced": 1e-4}
"""Smallest change of a weight after which a ratio of exactly 1 on `MANY_TOKENS` tokens cannot be rounding."""
VISIBLE_IN_ROUNDED = 1e-2
"""Smallest visible change where log-probs themselves are in reduced precision: one of -4 moves in steps of 0.016 in bfloat16, which
updates of an adapter by 0.001 need not reach on any of a few tokens."""


def _visible_change(progress: Progress) -> float:
    """The change of a weight that some log-probs of a run must show."""
    return VISIBLE_IN_ROUNDED if progress.rounds_log_probs else VISIBLE_CHANGE[progress.precision]


MANY_TOKENS = 64
"""Tokens of a micro-batch from which on the smallest change counts. With fewer tokens the change must be larger in proportion:
the log-prob of each may round to what it was. A step clipped to 1e-6 left both tokens of a micro-batch where they were. A token
counts by the probability of all others: of one that is all but certain, the log-prob hardly moves."""
FAR_MORE = 100
"""Times that change, which moves some token in reduced precision too, whatever the model."""
FEWEST_TOKENS = 8
"""The fewest tokens with which a ratio of exactly 1 proves something: a change that moves each log-prob with a probability of a
half leaves this many where they were once in 256 times."""


class RatioAtLagZero(ValueRule):
    """The ratio is not 1 although the same weights computed both log-probs.

    What it checks:
        On every micro-batch at lag 0 whose old log-probs were computed separately: the mean |log ratio| over real tokens is
        within the tolerance of the compute dtype. The tolerance is 0.0001 in float32 and 0.05 in reduced precision
        (`rlstep_hooks.judge.rules.ratio.values.MEAN_TOLERANCE`). In three micro-batches of 64 tokens together, 100
        times as far is an error, and 2.5 times in reduced precision, unless dropout or NEFTune is active.

        Token by token where the observer says it (TRL, verl, OpenRLHF): at most 0.05 % of the tokens in float32, 3.3 % in float16 and
        26 % in bfloat16 have a ratio outside of [0.9, 1.1], and the 99th percentile of |log ratio| is at most 0.005, 0.31 and
        2.5. Rounding within the tolerance of the mean leaves no more (`rlstep_hooks.judge.rules.apart`). Three tokens must be
        beyond the bound.

        A2C of Stable-Baselines3 has no ratio: there the log-probs of its loss are
        compared with those of the sampling.

    Why it matters:
        The ratio must be 1 at the first update on a rollout. If it is not, the two forwards differ in something other
        than the weights, and every later ratio is wrong by as much (trl#454, trl PR#3029, trl PR#3234).

    Example:
        WARNING RLS301 Ratio not 1 at lag 0 · data epoch 0, rollout 2, update 4,
        micro-batch 8
          expected  mean |log ratio| at most 0.0001 in float32
          observed  mean 0.1, max 1, 0.7 in the 99th percentile; 34.00% of 512
                    tokens are outside of [0.9, 1.1]
          why       the forward that computed the old log-probs differs from the
                    training forward in more than its weights; every later ratio is
                    off by as much
          fix       compare temperature, precision, attention kernel, padding and
                    the identity of the samples of both forwards

    What to do:
        Check in this order: dropout that is active in training mode (`disable_dropout=True`); a temperature that only
        one forward applies; old log-probs of other samples or other weights; another precision or attention kernel;
        padding; micro-batches of another size or packing (verl: rollout.log_prob_micro_batch_size_per_gpu beside
        actor.ppo_micro_batch_size_per_gpu), which rounds differently and is worst for mixtures of experts and images.

    Known limits:
        - Old log-probs of a rollout engine are not compared here, because the engine is another program: RLS403 looks at them.
        - In reduced precision the bounds are wide. A small fault, such as dropout of 1 %, can stay below them, and so can a few wrong
          tokens: 8 % of the tokens outside of [0.9, 1.1] are measured in healthy runs in bfloat16 (trl#6789).
        - Where an event has the mean alone, as in older records and for whole sequences, a few wrong tokens among thousands can stay
          below the bound. The report says "by means alone" then.

    Sources:
        - https://github.com/huggingface/trl/issues/454: ratios that diverge at the first update
        - https://github.com/huggingface/trl/pull/3029: a temperature that log-probs left out
        - https://github.com/huggingface/trl/pull/3234: dropout in the policy
        - https://github.com/hiyouga/LLaMA-Factory/issues/5246: old log-probs computed in training mode
        - https://github.com/volcengine/verl/issues/2996: micro-batches of other sizes and packing
        - https://github.com/NVIDIA-NeMo/RL/blob/main/docs/guides/grpo.md:
          the bound of 1.05 in reduced precision (token_mult_prob_error)
        - https://github.com/huggingface/trl/issues/6789: a signed mean of 0.0001 beside 8 % of the tokens outside of [0.9, 1.1]
    """

    code = "RLS301"
    title = "Ratio not 1 at lag 0"
    topics = ("versions", "log_ratio")
    nothing_seen = (
        "no micro-batch at lag 0 had old log-probs of its own (they are the current ones, ratio 1 by construction)"
    )
    cannot_see = "which version computed the old log-probs of a micro-batch, or their ratio, was not observed"
    produces = (here("RLS313"), lasting("RLS314"))
    # A mean of 0.125 makes the average token 13 % more or less probable, in two forwards of one program with the same weights.
    beyond: ClassVar[Mapping[str, float]] = {"float32": BEYOND_ROUNDING, "reduced": 2.5}

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._by_tokens = False
        """Whether single tokens were compared, and not only their mean."""

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Compare the |log ratio| of a lag-0 micro-batch with the tolerance, by its mean and by its tokens."""
        if event.old_source in ("detach", "engine"):
            return
        lag, mean = observed_lag(event), values.mean_abs_log_ratio
        if lag is None or (lag == 0 and mean is None):
            self.missed += 1
            return
        if lag or mean is None:
            return
        tolerance, dtype = MEAN_TOLERANCE[self.progress.precision], self.progress.compute_dtype
        apart = tokens_apart(values.tokens, values.log_ratio_outside, values.log_ratio_99)
        self._by_tokens = self._by_tokens or apart is not None
        distance = Distance(mean, tolerance, apart, (dtype,))
        if self.holds(distance.right):
            return
        noise = noise_of(self.progress.started.facts)
        cause = (
            noise.cause
            if noise is not None
            else "the forward that computed the old log-probs differs from the training forward in more than its weights"
        )
        self.fail_by(
            distance.times if noise is None else 1.0,  # noise is no fault of the formulas, however far it goes
            tokens=values.tokens or 0,
            beyond=distance.beyond,
            expected=f"{distance.expected(f'mean |log ratio| at most {tolerance:g}')} in {dtype}",
            observed=distance.observed(f"mean {mean:.3g}, max {values.max_abs_log_ratio or 0.0:.3g}"),
            degree=distance.degree,
            variant=distance.variant,
            why=cause + "; every later ratio is off by as much",
            fix=(
                noise.fix
                if noise is not None
                else "compare temperature, precision, attention kernel, padding and the identity of the samples of both forwards"
            ),
        )

    def note(self) -> str:
        """Whether single tokens were compared."""
        return "" if self._by_tokens else BY_MEANS


class RatioStuckAtOne(ValueRule):
    """The ratio is exactly 1 on every token although the weights have changed.

    What it checks:
        On micro-batches at a lag above 0, after updates that visibly changed weights: the log ratio is not exactly 0 on
        every real token. Updates whose log-probs got no gradient do not count, where that is observed: they change a
        critic that shares the optimizer, and not the policy. The test is exact, because rounding moves some token of a
        micro-batch once weights differ visibly. In reduced precision a tiny model can round to the same logits, so
        there the rule warns; three such micro-batches of 64 tokens together are an error if the ratio of others moved in this run, or
        if a weight changed by 0.01.

    Why it matters:
        Old log-probs that always equal the new ones are recomputed with the current weights, or are the same tensor.
        The clip never acts, and reuse epochs run without a trust region (verifiers PR#320, trl#3120).

    Example:
        ERROR RLS302 Ratio stuck at 1 · data epoch 0, rollout 2, update 5,
        micro-batch 10
          expected  a ratio other than 1 on some of 8 tokens, 1 update after they
                    were sampled
          observed  exactly 1 on every token
          why       the old log-probs are those of the current weights: recomputed,
                    or the same tensor
          fix       find the code that computes old log-probs again, or passes the
                    current ones in their place

    What to do:
        Find where old log-probs are computed again, or where the current ones are passed in their place.

    Known limits:
        - Fewer than 8 tokens can keep their log-probs by rounding. Such micro-batches are left out; RLS310 looks at whole
          rollouts.
        - Micro-batches of a collapsed policy are left out: one that is certain of every token, or of all but so few that the
          probabilities of the others add up to less than 0.1. Their ratio can stay 1 while weights move.
        - It needs a probe that saw weights change by 1e-7 in float32, or 1e-4 in reduced precision. At a tiny learning rate it
          has nothing to say; RLS310 looks at whole rollouts.

    Sources:
        - https://github.com/PrimeIntellect-ai/verifiers/pull/320: num_iterations with a ratio of always 1
        - https://github.com/huggingface/trl/issues/3120: a clip that never acts
        - https://arxiv.org/abs/1707.06347: the ratio and its clip
    """

    code = "RLS302"
    title = "Ratio stuck at 1"
    severity = "error"
    topics = ("versions", "log_ratio", "weights")
    nothing_seen = "no micro-batch had a lag above 0 after an update that visibly changed weights"
    cannot_see = "which version sampled a micro-batch, or its ratio, was not observed"
    produces = (here("RLS305", "RLS310"),)

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._taught: dict[int, bool] = {}
        """Whether a gradient arrived at the log-probs of some micro-batch, by the policy version that computed them."""
        self._moved = 0
        """Micro-batches whose ratio showed such a change."""

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Look for an exact 0 on every token."""
        taught = values.log_prob_gradient != 0.0
        remember(self._taught, event.policy_version, self._taught.get(event.policy_version, False) or taught)
        if event.old_source == "detach" or not values.tokens:
            return
        if event.sampled_version is None or values.max_abs_log_ratio is None:
            self.missed += 1
            return
        if event.sampled_version >= event.policy_version:
            return
        if event.old_version is not None and event.old_version >= event.policy_version:
            return
        visible = _visible_change(self.progress)
        change = self._change(event.sampled_version, event.policy_version)
        if values.tokens < FEWEST_TOKENS or is_certain(values):
            return
        few = max(1.0, MANY_TOKENS / (values.tokens if values.unsure is None else values.unsure))
        if change < few * visible:
            return
        if self.holds(values.max_abs_log_ratio != 0.0):
            self._moved += 1
            return
        exact = self.progress.precision == "float32"
        shows = exact or self._moved >= SEVERAL or change >= FAR_MORE * visible
        self.fail_by(
            math.inf if shows else 1.0,
            known="the current log-probs" if exact else "",
            exact=exact,
            tokens=values.tokens,
            expected=(
                f"a ratio other than 1 on some of {values.tokens} tokens, "
                f"{number(event.policy_version - event.sampled_version, 'updates')} after they were sampled"
            ),
            observed="exactly 1 on every token",
            why="the old log-probs are those of the current weights: recomputed, or the same tensor",
            fix="find the code that computes old log-probs again, or passes the current ones in their place",
        )

    def _change(self, since: int, version: int) -> float:
        """The largest change of a weight in an update between two versions that taught the policy."""
        made = self.progress.update_values
        between = range(max(since, version - RECENT_UPDATES) + 1, version + 1)
        taught = (later for later in between if later in made and self._taught.get(later - 1, True))
        return max((made[later].max_change or 0.0 for later in taught), default=0.0)


UNMOVED_ROLLOUTS = 3
"""Rollouts in a row whose ratio must stay exactly 1 before it is reported, if the learning rate is so small that rounding can hide the
updates of one rollout."""


class RatioNeverMoves(Rule):
    """The ratio is exactly 1 on every token of a whole rollout, at every lag.

    What it checks:
        For each rollout whose advantages are not all 0 on the tokens that are trained, with a learning rate above 0: some
        micro-batch at a lag above 0 has a token whose log ratio is not exactly 0. The rule does not ask for a reason:
        whether weights changed is the question of others. Where the learning rate is so small that rounding could hide
        the updates of one rollout, it fails after three rollouts in a row in float32, and says nothing in reduced precision.

    Why it matters:
        Updates that move the policy move the ratio. If it never moves, nothing was learned in between, or the old
        log-probs are the new ones under another name. Either way the later updates on a rollout are not what the
        configuration says, and the clip never acts.

    Example:
        ERROR RLS310 Ratio never leaves 1 · data epoch 0, rollout 0, update 1,
        micro-batch 2 · 4 times, in rollouts 0 to 3
          expected  a ratio other than 1 on some token of the rollout, once the
                    policy was updated on it
          observed  exactly 1 on every token of 2 micro-batches at a lag above 0
          why       advantages differ from 0 and the learning rate is 0.01: either
                    the updates do not reach the weights, or the old log-probs are
                    those of the current weights
          fix       see whether the weights change (RLS401, RLS406, RLS407); if they
                    do, find what passes new log-probs for old ones

    What to do:
        If RLS406, RLS401 or RLS407 failed too, the weights do not change: begin there. Otherwise find where old
        log-probs are computed again, or where the current ones are passed in their place.

    Known limits:
        - Micro-batches of a collapsed policy, which is certain of all tokens but very few, are left out, and rollouts in which each
          completion with an advantage is known to come more than once, because gradients of equal completions can cancel.
        - It needs a plan with lags above 0: with one update on each rollout it has nothing to check.
        - In reduced precision a rate below 0.0001 proves nothing, nor one below 0.01 where the log-probs themselves are kept in it (a
          model in bf16, FSDP's mixed precision): such updates are below the resolution of the log-probs.
        - A rollout of which the loss trains no token, for its clip or its masks, is not compared, nor any where nobody knows
          which tokens those are.
        - It needs advantages that the observer sees.

    Sources:
        - https://github.com/huggingface/trl/issues/3120: clip ratios of 0
        - https://github.com/rllm-org/rllm/issues/111: a KL that stays flat at 0 although mini-batches split the rollout
        - https://github.com/openai/spinningup/issues/181: a ratio of 1 in a loop of somebody's own
    """

    code = "RLS310"
    title = "Ratio never leaves 1"
    topics = ("versions", "log_ratio", "trained_tokens")
    nothing_seen = "no rollout with advantages known to differ from 0 had a micro-batch at a lag above 0 with old log-probs of its own"

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._rates: dict[int, float] = {}
        """The learning rate of each update, by the policy version that it made."""
        self._signal = RolloutsWithSignal()
        self._open: _AtLag | None = None
        self._unmoved = 0
        self._taught: dict[int, int] = {}
        """By policy version the rollout of a micro-batch that was trained with it, of which some trained token has, or may have, an
        advantage other than 0."""

    def update(self, event: Update) -> None:
        """Remember the rate of an update."""
        if event.applied and event.learning_rate is not None:
            remember(self._rates, event.version, event.learning_rate)

    def rollout_values(self, values: RolloutValues, event: Rollout) -> None:
        """Remember whether there is something to learn from a rollout."""
        self._signal.add(values, event, self.progress.rollout_shown)

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Look at a micro-batch that is trained after an update."""
        rollout = self.progress.rollout_shown
        if may_teach(values):
            remember(self._taught, event.policy_version, rollout)
        lag = observed_lag(event)
        if (
            event.old_source not in ("at_rollout", "recompute", "engine")
            or values.max_abs_log_ratio is None
            or not values.tokens
            or is_certain(values)
        ):
            return
        if lag is None or lag < 1:
            return
        if self._open is None or self._open.rollout != rollout:
            self._settle()
            self._open = _AtLag(rollout, event, self.progress.place_shown)
        self._open.microbatches += 1
        # An update on micro-batches that teach nothing, such as truncated completions that are masked, leaves the ratio at 1.
        before = range(event.policy_version - lag, event.policy_version)
        self._open.learned = self._open.learned or any(self._taught.get(version) == rollout for version in before)
        self._open.moved = self._open.moved or values.max_abs_log_ratio != 0.0
        between = range(
            max(event.policy_version - lag, event.policy_version - RECENT_UPDATES) + 1, event.policy_version + 1
        )
        self._open.rate = max([self._open.rate, *(self._rates.get(version, 0.0) for version in between)])

    def ended(self, event: RunEnded) -> None:
        """Judge the last rollout."""
        self._settle()

    def _settle(self) -> None:
        seen, self._open = self._open, None
        if seen is None or seen.rollout not in self._signal.numbers or not seen.rate or not seen.learned:
            return
        self._signal.forget_to(seen.rollout)
        self.checks += 1
        self._unmoved = 0 if seen.moved else self._unmoved + 1
        visible = seen.rate >= _visible_change(self.progress)
        # In reduced precision a small update is below the resolution of the log-probs, however often it is made.
        often = self._unmoved >= UNMOVED_ROLLOUTS and self.progress.precision == "float32"
        if seen.moved or not (visible or often):
            return
        self.fail(
            expected="a ratio other than 1 on some token of the rollout, once the policy was updated on it",
            observed=f"exactly 1 on every token of {number(seen.microbatches, 'micro-batches')} at a lag above 0",
            where=self.progress.where_at(seen.place, seen.first),
            why=(
                f"advantages differ from 0 and the learning rate is {seen.rate:g}: either the updates do not reach the weights, or "
                "the old log-probs are those of the current weights"
            ),
            fix="see whether the weights change (RLS401, RLS406, RLS407); if they do, find what passes new log-probs for old ones",
        )


class _AtLag:
    """What the micro-batches of one rollout at a lag above 0 showed."""

    __slots__ = ("first", "learned", "microbatches", "moved", "place", "rate", "rollout")

    def __init__(self, rollout: int, first: MicroBatch, place: Place) -> None:
        self.rollout = rollout
        self.first = first
        self.place = place
        self.microbatches = 0
        self.moved = False
        self.learned = False
        """Whether a token with an advantage was trained before or with them: masks may leave none."""
        self.rate = 0.0
        """The largest learning rate of the updates in between."""


class LoggedRatio(Rule):
    """The ratio in the logs is not the ratio of the updates.

    What it checks:
        Where the framework logs a mean ratio for each rollout: its distance from the mean over the same micro-batches
        is at most 10 %. Each process logs the mean of all processes and is compared with its own.

    Why it matters:
        A mean ratio far from 1 is the usual sign of stale samples or a broken denominator. A mean that is logged too
        small hides both, and makes a healthy run look broken. Whatever is averaged in the same way (clip fraction, KL,
        losses) is wrong by the same factor.

    Example:
        WARNING RLS309 Logged ratio differs from the measured one · data epoch 0,
        rollout 1, update 2
          expected  the mean ratio of the updates on this rollout, 1.02
          observed  0.51 in the logs, 0.5 times that
          why       the logs average over more than the micro-batches that were
                    trained, or over others
          fix       divide this and other averages of the loop by 0.5

    What to do:
        Divide the logged numbers by the factor that the finding names, or take the work-around.

    Known limits:
        - The rule says that the log is wrong, not that training is.

    Sources:
        - https://github.com/huggingface/trl/blob/v0.17.0/trl/trainer/ppo_trainer.py:
          statistics of a fixed size that fewer micro-batches fill
        - https://github.com/huggingface/trl/pull/2531: the divisor behind it
    """

    code = "RLS309"
    title = "Logged ratio differs from the measured one"
    severity = "warning"
    topics = ("log_ratio",)
    nothing_seen = "the framework logs no mean ratio"
    needs = ("rollout_values.logged_ratio",)

    def rollout_values(self, values: RolloutValues, event: Rollout) -> None:
        """Compare the two means."""
        if values.logged_ratio is None or not values.mean_ratio:
            return
        factor = values.logged_ratio / values.mean_ratio
        if self.holds(abs(factor - 1) <= LOGGED_TOLERANCE):
            return
        self.fail(
            expected=f"the mean ratio of the updates on this rollout, {values.mean_ratio:.4g}",
            observed=f"{values.logged_ratio:.4g} in the logs, {factor:.3g} times that",
            why="the logs average over more than the micro-batches that were trained, or over others",
            fix=f"divide this and other averages of the loop by {factor:.3g}",
        )
