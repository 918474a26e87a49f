"""How far an engine's log-probs are from the trainer's, and why."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.rules.apart import BY_MEANS, Distance, tokens_apart
from rlstep_hooks.judge.rules.certain import ValueRule
from rlstep_hooks.judge.rules.precision import precision_class

if TYPE_CHECKING:
    from rlstep_hooks.judge.delivery import Delivery
    from rlstep_hooks.judge.rules.apart import TokensApart
    from rlstep_hooks.judge.rules.precision import Precision
    from rlstep_hooks.judge.rules.progress import Progress
    from rlstep_hooks.record.events import MicroBatch, MicroBatchValues, Rollout, RolloutValues

SAMPLER_GAP_TOLERANCE = {"float32": 1e-3, "reduced": 0.05}
"""Largest mean |trainer log-prob - engine log-prob| without a warning.

Reduced precision on either side: NeMo-RL docs/guides/grpo.md, 1.05 multiplicative. float32 on both: two implementations of one
model differ by rounding only; a real vLLM engine on a CPU against verl's trainer stays below 1e-6 (tests/systems/verl), and
the bound leaves three orders of magnitude."""


ROUNDING_GAP = {"float32": 1e-5, "reduced": 1e-3}
"""A distance below this is rounding, whatever the distances before were."""


SUDDEN = 10.0
"""How many times the largest distance so far is sudden. Healthy rollouts on a CPU in bf16 stay within a factor of two of each other
(tests/systems/openrlhf); a distance that grows slowly with training raises this bound."""


ENOUGH_MEASURED = 2
"""Rollouts that must be measured before a distance can be called unusual."""


ENOUGH_TOKENS = 1024
"""Tokens of a micro-batch from which its mean is compared in reduced precision: the bound is one for the mean of a rollout."""


TRUNCATION_SHARE = 0.15
"""Relative distance from -ln(top_p) within which the gap is named after it: the tokens that are left have at least that mass."""

AS_FAR = 0.25
"""Relative distance from an earlier rollout's gap within which the cause that was found there holds, where none was looked for."""

EXPLAINED = ("truncation", "rounding")
"""Causes of a distance that leave it a warning however large it is: a truncation may be configured."""


class _Cause(msgspec.Struct, frozen=True):
    """Why an engine's log-probs are far from the trainer's."""

    why: str
    fix: str
    shows: str = ""
    """What was computed to find the cause."""
    variant: str = ""


def _cause_of(fit: str) -> _Cause:
    """The cause that `rlstep_hooks.observe.engine_distance` names."""
    kind = fit.partition(" ")[0]
    if kind == "temperature":
        return _Cause(
            why="engine and trainer divide their logits by different temperatures, so the ratio between them is no correction",
            fix="give both the same temperature, and ask the engine for processed log-probs: raw ones are those of temperature 1",
            shows=f"the engine's log-probs are those at {fit}",
            variant="temperature",
        )
    if kind in ("top_k", "top_p", "min_p"):
        return _Cause(
            why=f"the engine's log-probs are those of the tokens that {fit} leaves, the trainer's of all",
            fix="sample from all tokens, or correct with log-probs of the same distribution",
            shows=f"the engine's log-probs are those of {fit}",
            variant="truncation",
        )
    if kind in ("logits", "log-probs"):
        return _Cause(
            why="the engine rounds where the trainer does not; a ratio over many tokens adds the errors up",
            fix="have the engine compute its last layer and its log-probs in float32",
            shows=f"the engine has its {fit}",
            variant="rounding",
        )
    return _Cause(
        why="the engine's log-probs belong to other tokens than those that they are used for",
        fix="look at where the prompt is cut off, at padding, and at the order in which the engine's answers are put together",
        shows=f"the engine's log-probs are {fit}",
        variant="place",
    )


class SamplerGap(ValueRule):
    """The engine's log-probs are far from the trainer's at the same version.

    What it checks:
        Where the engine returns log-probs of the tokens that it sampled: their mean distance from the trainer's at the
        same policy version. The bound is 0.05 in reduced precision and 0.001 where both compute in float32. Once two
        rollouts were measured, the rule also warns at ten times the largest distance so far. More than 100 times the bound
        is an error, since no rounding explains it, unless a truncation or fewer bits were found to.

        Token by token where all samples are of the same weights: at most 26 % of them have a ratio outside of [0.9, 1.1] and the 99th
        percentile is at most 2.5 in bfloat16; 3.3 % and 0.31 where both compute in float16, 0.52 % and 0.05 where both do in float32.
        Rounding within the tolerance of the mean leaves no more (`rlstep_hooks.judge.rules.apart`). Three tokens must be beyond
        the bound.

        Where samples come of older weights, those of the same weights alone are compared (verl); where there are none, only
        a distance that has one of the following causes is reported.

        Where the trainer's logits of some tokens can be read (TRL, verl), each documented cause is computed from them and the
        one that leaves at most 3 % of the distance is named, or less where few tokens share it: another temperature, a
        truncation (top_k, top_p, min_p), logits or log-probs of fewer bits, log-probs of the neighbouring token or of
        another sample. What is left has another cause: weights, kernels, an adapter. The finding says whether the weights were
        compared.

    Why it matters:
        A distance at equal versions means that the engine computes something else: stale weights behind an equal
        version, another precision, other kernels (which differ even where the weights are shared), a temperature or a
        truncation that only one side applies (trl#4159, trl#5312). It is not the same with another engine: a run that is
        stable with SGLang can collapse with vLLM.

    Example:
        WARNING RLS403 Engine and trainer disagree · data epoch 0, rollout 2, update
        4
          expected  mean |log-prob difference| at most 0.05
          observed  mean 0.2, max 3.1, 1.4 in the 99th percentile; 46.00% of 4096
                    tokens are outside of [0.9, 1.1]
          why       at the same policy version engine and trainer should give nearly
                    the same log-probs
          fix       compare weights first, then temperature, top-p and the engine's
                    log-prob mode

    What to do:
        Compare the weights first, then temperature, top-p and the engine's log-prob mode.

    Known limits:
        - It needs an engine that returns log-probs.
        - A few wrong tokens among thousands can stay below the bounds: 7.5 % of the tokens outside of [0.9, 1.1] are measured in a
          healthy run in bfloat16 (trl#6789). Where a record has the mean alone, the report says "by means alone".
        - Causes are looked for one at a time: where two act together, none is named. Logits of a compiled model are not read.
        - A rollout that is not recomputed, but within a quarter as far off as one in which a cause was found, is taken to have
          that cause.
        - Where no logits are read, a truncation that is configured is not told from other
          causes: a healthy run that truncates has a warning, and an error where both sides compute in float32.
        - A distance that grows slowly from rollout to rollout is compared with itself: only the bound finds it.

    Sources:
        - https://github.com/NVIDIA-NeMo/RL/blob/main/docs/guides/grpo.md: the bound of 1.05 (token_mult_prob_error)
        - https://github.com/huggingface/trl/issues/6789: a signed mean of -0.0015 beside 7.5 % of the tokens outside of [0.9, 1.1]
        - https://github.com/huggingface/trl/issues/5312: 0.015 in a healthy run and 0.2 with stale weights
        - https://github.com/huggingface/trl/issues/4159: a temperature that only one side applied
        - https://github.com/areal-project/AReaL/issues/1290: stable with one engine, and not with another
        - https://github.com/NVIDIA-NeMo/RL/issues/3743: a distance although the weights are shared
        - https://github.com/vllm-project/vllm/issues/32718: a reload that gives cached weights
        - https://arxiv.org/abs/2605.14220: a small mismatch can be enough for a collapse
    """

    code = "RLS403"
    title = "Engine and trainer disagree"
    several = 1
    topics = ("versions", "sampler", "sampler_weights")
    nothing_seen = "no rollout came with both the sampler's log-probs and the trainer's own of the same weights"
    optional = True
    needs = ("microbatch_values.mean_abs_log_ratio",)

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._measured = 0
        """Rollouts whose distance was within the bound."""
        self._largest = 0.0
        """The largest distance among these rollouts."""
        self._delivered: bool | None = None
        """Whether the engine holds the weights of the policy, as far as they were compared; None if they were not."""
        self._by_tokens = False
        """Whether single tokens were compared, and not only their mean."""
        self._found: tuple[str, float] | None = None
        """The latest cause that was computed, and the distance that it gave: later rollouts are seldom recomputed."""

    def delivered(self, delivery: Delivery) -> None:
        """Remember whether the engine's own tensors were those of the policy."""
        if delivery.compared:
            self._delivered = not delivery.wrong

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Compare the engine's log-probs where they are the old ones, and all samples are of the weights that train on them."""
        gap = values.mean_abs_log_ratio
        asked = self.progress.started.facts.get("engine_log_probs_are_old")
        if not asked or event.old_source != "engine" or event.old_version != event.policy_version or gap is None:
            return
        if self._precision() == "reduced" and (values.tokens or 0) < ENOUGH_TOKENS:
            return
        distance = self._distance(gap, tokens_apart(values.tokens, values.log_ratio_outside, values.log_ratio_99))
        if self.holds(distance.right):
            return
        cause = self._rest()
        self.fail_by(
            distance.times,
            beyond=distance.beyond,
            expected=distance.expected(f"mean |log-prob difference| at most {distance.tolerance:g}"),
            observed=distance.observed(f"mean {gap:.3g}, max {values.max_abs_log_ratio or 0.0:.3g}"),
            degree=distance.degree,
            why=cause.why,
            fix=cause.fix,
            variant="old log-probs",
        )

    def rollout_values(self, values: RolloutValues, event: Rollout) -> None:
        """Compare the gap with the bounds, by its mean and by its tokens."""
        lags = event.sampler_version is not None and event.sampler_version != event.policy_version
        # Samples with a stamp of no sync, where stamps are of single samples.
        lags = lags or (event.sampler_version is None and event.queue is not None and bool(event.queue.waited))
        gap = values.sampler_gap_fresh if lags else values.sampler_gap_mean
        if gap is None and lags and values.sampler_gap_fit:
            # Weights of another age give other log-probs, but not those of another temperature, or of another sample.
            gap = values.sampler_gap_mean
        if gap is None:
            in_loss = self.progress.started.facts.get("engine_log_probs_are_old")
            self.missed += event.purpose == "training" and not lags and not in_loss
            return
        self.checks += 1
        # Tokens of other weights may be as far off as they like.
        far, share = (None, None) if lags else (values.sampler_gap_99, values.sampler_gap_outside)
        distance = self._distance(gap, tokens_apart(values.sampler_gap_tokens, share, far))
        usual = self._usual()
        sudden = usual is not None and gap > usual * SUDDEN
        if distance.right and not sudden:
            self._measured, self._largest = self._measured + 1, max(self._largest, gap)
            return
        observed = distance.observed(f"mean {gap:.3g}, max {values.sampler_gap_max or 0.0:.3g}")
        if distance.right:
            self.fail(
                expected=f"mean |log-prob difference| near the {self._largest:.3g} of the rollouts before",
                observed=observed,
                why="at the same policy version the engine suddenly computes something else: with other weights, or other settings",
                fix="look at the sync of weights before this rollout: are all tensors sent and loaded?",
                variant="sudden",
            )
            return
        top_p = self.progress.started.facts.get("configured_sampling", {}).get("top_p", 1.0)
        if values.sampler_gap_fit:
            cause, self._found = _cause_of(values.sampler_gap_fit), (values.sampler_gap_fit, gap)
        elif self._found is not None and abs(gap - self._found[1]) <= AS_FAR * self._found[1]:
            cause = _cause_of(self._found[0])  # a repetition of what was said of the earlier rollout
        elif top_p < 1 and abs(gap + math.log(top_p)) <= TRUNCATION_SHARE * -math.log(top_p):
            cause = msgspec.structs.replace(_cause_of(f"top_p {top_p:g}"), shows=f"which is -ln {top_p:g}")
        else:
            cause = self._rest()
        self.fail_by(
            1.0 if cause.variant in EXPLAINED else distance.times,
            beyond=distance.beyond,
            expected=distance.expected(f"mean |log-prob difference| at most {distance.tolerance:g}"),
            observed=f"{observed}; {cause.shows}" if cause.shows else observed,
            degree="" if cause.shows else distance.degree,
            why=cause.why,
            fix=cause.fix,
            variant=cause.variant or distance.variant,
        )

    def note(self) -> str:
        """Whether single tokens were compared."""
        return "" if self._by_tokens else BY_MEANS

    def _rest(self) -> _Cause:
        """What is left where no cause fits."""
        if self._delivered:
            return _Cause(
                why="at the same policy version engine and trainer should give nearly the same log-probs; the weights that were"
                " compared are equal",
                fix="what is left: kernels and their precision, an adapter, a cache of an earlier version, another chat template",
            )
        weights = (
            "compare weights first, then"
            if self._delivered is None
            else "mend the sync of weights first (RLS415), then"
        )
        return _Cause(
            why="at the same policy version engine and trainer should give nearly the same log-probs",
            fix=f"{weights} temperature, top-p and the engine's log-prob mode",
        )

    def _distance(self, mean: float, apart: TokensApart | None) -> Distance:
        """A mean and the tokens beside it, with the tolerance for both."""
        self._by_tokens = self._by_tokens or apart is not None
        return Distance(mean, SAMPLER_GAP_TOLERANCE[self._precision()], apart, self._dtypes())

    def _dtypes(self) -> tuple[str, ...]:
        """The compute dtypes of both sides."""
        facts = self.progress.started.facts
        return tuple(str(facts.get(name, "unknown")) for name in ("compute_dtype", "engine_dtype"))

    def _precision(self) -> Precision:
        """The precision of the side that computes with fewer digits."""
        return "float32" if {*map(precision_class, self._dtypes())} == {"float32"} else "reduced"

    def _usual(self) -> float | None:
        """The largest distance of the rollouts so far, no less than rounding; None until there are enough of them."""
        least = ROUNDING_GAP[self._precision()]
        return max(self._largest, least) if self._measured >= ENOUGH_MEASURED else None
