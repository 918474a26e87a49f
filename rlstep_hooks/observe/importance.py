"""Importance weights between the policy that trains and the one that sampled, by their documented formulas. B samples, T tokens.

A weight is exp(old log-prob - the engine's log-prob) of a token, or of the sum or the mean over a sequence; beyond its bounds it is
cut off, or made 0.
Sources: verl 0.9.1 docs/algo/rollout_corr_math.md; TRL 1.16 docs/source/paper_index.md "Truncated Importance Sampling" and
trainer/grpo_config.py `vllm_importance_sampling_mode`; ms-swift docs/source_en/Instruction/GRPO/AdvancedResearch/
training_inference_mismatch.md; fengyao.notion.site/off-policy-rl.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec
import torch

from rlstep_hooks.observe.losses import mean_over_sequence
from rlstep_hooks.planning.words import WEIGHTS_OF_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

ROUNDINGS = 16
"""How many roundings a log ratio, its sum over T tokens, and the exponential take together, for each unit of their size."""
NOT_WEIGHED = 1e30
"""How far weights are off that are missing."""


class Correction(msgspec.Struct, frozen=True):
    """How weights are computed."""

    level: Literal["token", "sequence"]
    upper: float = math.inf
    lower: float = -math.inf
    beyond: Literal["cut off", "0"] = "cut off"
    """What a weight outside of its bounds becomes."""
    normalized: bool = False
    """Whether the weights are divided by their mean over the samples."""
    largest_log: float = math.inf
    """Logarithms of weights are cut off here, on both sides."""
    geometric: bool = False
    """Whether the weight of a sequence is the geometric mean of those of its tokens, and not their product."""


@dataclass(frozen=True)
class Comparison:
    """Weights against their formula. Nothing in it has made the host wait for the device."""

    off: Tensor
    """The largest distance in units of what rounding explains, (); NaN where nothing could be compared."""
    cut: Tensor
    """Fraction of the tokens whose documented weight is outside of its bounds, (); NaN where that is not known."""
    like: Callable[[], str]
    """Names the calculation that gives these weights, where they are not the documented ones and one was found; the call waits
    for the device."""


def no_weights(why: str, device: torch.device) -> Comparison:
    """The comparison of weights that are configured and were not computed.

    Args:
        why: Why there are none, in words that follow "no weights at all: ".
        device: Where numbers of the comparison stand.
    """
    off, cut = (torch.tensor(value, device=device) for value in (NOT_WEIGHED, math.nan))
    return Comparison(off, cut, lambda: f"no weights at all: {why}")


def compare(correction: Correction, weights: Tensor, own: Tensor, engine: Tensor, mask: Tensor) -> Comparison:
    """Compare weights with those of the log-probs.

    Args:
        correction: How they are documented.
        weights: (B, T), or (B, 1) for whole sequences.
        own: Old log-probs of the trainer, (B, T).
        engine: Log-probs that the engine gave with the tokens that it sampled, (B, T); NaN where it gave none.
        mask: 1 on the tokens that count, (B, T).
    """
    epsilon = torch.finfo(weights.dtype).eps
    known = ~engine.isnan()
    sure = mask.bool() & (known if correction.level == "token" else known.all(-1, keepdim=True).expand_as(known))
    mask = mask.double()
    own, engine = own.double() * mask, engine.nan_to_num().double() * mask
    weights = weights.double().expand_as(mask)
    ratio = torch.where(known, own - engine, 0.0)
    documented = importance_weights(correction, ratio, mask)
    raw = importance_weights(_unbounded(correction), ratio, mask)
    size = own.abs() + engine.abs() + 1
    if correction.level == "sequence":
        size = mean_over_sequence(size, mask) if correction.geometric else size.sum(-1, keepdim=True)
    rounding = ROUNDINGS * epsilon * size * documented.clamp(min=1.0)
    if correction.beyond == "0":
        # Rounding decides on which side of a bound a weight is that lies on it.
        for bound in (correction.lower, correction.upper):
            sure &= (raw - bound).abs() > rounding
    outside = (raw > correction.upper) | (raw < correction.lower)
    return Comparison(
        torch.where(sure.any(), _off(weights, documented, rounding, sure), torch.nan),
        (outside & mask.bool()).sum() / mask.sum(),
        partial(_named, correction, weights, ratio, mask, rounding, sure),
    )


def importance_weights(correction: Correction, log_ratio: Tensor, mask: Tensor) -> Tensor:
    """The documented weights, (B, T), 0 where nothing counts.

    Args:
        correction: How they are computed.
        log_ratio: Old log-probs minus those of the engine, (B, T).
        mask: 1 on the tokens that count, (B, T).
    """
    if correction.level == "sequence":
        log_ratio = _of_sequences(correction, log_ratio, mask)
    weights = log_ratio.clamp(-correction.largest_log, correction.largest_log).exp()
    if correction.beyond == "cut off":
        weights = weights.clamp(correction.lower, correction.upper)
    else:
        weights = torch.where((weights >= correction.lower) & (weights <= correction.upper), weights, 0.0)
    weights = weights * mask
    if not correction.normalized:
        return weights
    if correction.level == "sequence":
        counted = mask.sum(-1) > 0
        mean = (weights.sum(-1) / mask.sum(-1).clamp(min=1)).sum() / counted.sum()
    else:
        mean = weights.sum() / mask.sum()
    return torch.where(mean > 1e-8, weights / mean, weights)


def _of_sequences(correction: Correction, log_ratio: Tensor, mask: Tensor) -> Tensor:
    """The log ratio of each sequence at each of its tokens, (B, T)."""
    if correction.geometric:
        return mean_over_sequence(log_ratio.clamp(-correction.largest_log, correction.largest_log), mask).expand_as(
            mask
        )
    return (log_ratio * mask).sum(-1, keepdim=True).expand_as(mask)


def _unbounded(correction: Correction) -> Correction:
    return msgspec.structs.replace(correction, upper=math.inf, lower=-math.inf)


def _others(correction: Correction, ratio: Tensor, mask: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What else gives weights, in words."""
    change = partial(msgspec.structs.replace, correction)
    level: Literal["token", "sequence"] = "sequence" if correction.level == "token" else "token"
    yield "all of them 1", mask
    yield "the inverse of each", importance_weights(correction, -ratio, mask)
    yield "without their bounds", importance_weights(_unbounded(correction), ratio, mask)
    if correction.level == "sequence" and correction.beyond == "0":
        kept = importance_weights(correction, ratio, mask) > 0
        yield WEIGHTS_OF_TOKENS, importance_weights(_unbounded(change(level="token")), ratio, mask) * kept
    yield f"those of a {level}", importance_weights(change(level=level), ratio, mask)
    if correction.level == "sequence":
        of = "products" if correction.geometric else "geometric means"
        yield (
            f"{of} over the tokens of a sequence",
            importance_weights(change(geometric=not correction.geometric), ratio, mask),
        )
    yield "with the other kind of mean", importance_weights(change(normalized=not correction.normalized), ratio, mask)
    if correction.beyond == "0":
        yield "cut off at their bounds, and not made 0", importance_weights(change(beyond="cut off"), ratio, mask)
    else:
        yield "made 0 outside of their bounds, and not cut off", importance_weights(change(beyond="0"), ratio, mask)
    yield "those of tokens that do not count too", importance_weights(correction, ratio, torch.ones_like(mask))
    yield "each with the square of its ratio", importance_weights(correction, 2 * ratio, mask)


def _named(correction: Correction, weights: Tensor, ratio: Tensor, mask: Tensor, rounding: Tensor, sure: Tensor) -> str:
    others = _others(correction, ratio, mask)
    return next((words for words, other in others if float(_off(weights, other, rounding, sure)) <= 1), "")


def _off(weights: Tensor, documented: Tensor, rounding: Tensor, sure: Tensor) -> Tensor:
    """The largest distance in roundings, ()."""
    return torch.where(sure, (weights - documented).abs() / rounding, 0.0).max()
