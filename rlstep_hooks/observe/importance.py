"""Importance weights between the policy that trains and the one that sampled, by their documented formulas. B samples, T tokens.

A weight is exp(old log-prob - the engine's log-prob) of a token, or of the sum over a sequence; beyond its bounds it is cut off, or
made 0. What is compared with the bounds is the weight itself, or a statistic of its token or its sequence.
Sources: verl 0.9.1 docs/algo/rollout_corr_math.md; TRL 1.16 docs/source/paper_index.md "Truncated Importance Sampling" and
trainer/grpo_config.py `vllm_importance_sampling_mode`; OpenRLHF 0.11.2 cli/train_ppo_ray.py `algo.advantage.is_correction_*`;
fengyao.notion.site/off-policy-rl.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Literal, get_args

import msgspec
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import Tensor

ROUNDINGS = 16
"""How many roundings a log ratio, its sum over T tokens, and the exponential take together, for each unit of their size."""

NOT_WEIGHED = 1e30
"""How far weights are off that are missing, or of other log-probs."""

CUT_PROBABILITY = 1e-6
"""Probabilities are cut off at this distance from 0 and 1 before their divergence is computed (OpenRLHF 0.11.2, models/loss.py)."""


Level = Literal["token", "sequence"]
Statistic = Literal["ratio", "binary_kl", "tv"]
"""What is compared with bounds: the ratio, or the divergence of the two probabilities of the sampled token, as one of two events or as
a total variation."""


_STATISTICS: dict[Statistic, str] = {"ratio": "ratio", "binary_kl": "binary KL divergence", "tv": "total variation"}


class Gate(msgspec.Struct, frozen=True):
    """What is compared with the bounds, where that is not the weight itself."""

    statistic: Statistic
    level: Level
    """Whether each token has its own, or each sequence the mean over its tokens (of a ratio the geometric one)."""


class Correction(msgspec.Struct, frozen=True):
    """How weights are computed."""

    level: Level
    upper: float = math.inf
    lower: float = -math.inf
    beyond: Literal["cut off", "0"] = "cut off"
    """What a weight outside of its bounds becomes."""
    normalized: bool = False
    """Whether the weights are divided by their mean over the samples."""
    largest_log: float = math.inf
    """Logarithms of weights are cut off here, on both sides."""
    gate: Gate | None = None
    """What is compared with the bounds; None for the weight itself."""


@dataclass(frozen=True)
class _Given:
    """What weights are computed from, each (B, T) and 0 where nothing counts."""

    own: Tensor
    engine: Tensor
    mask: Tensor

    @property
    def log_ratio(self) -> Tensor:
        return self.own - self.engine

    @property
    def inverse(self) -> _Given:
        return _Given(self.engine, self.own, self.mask)

    @property
    def squared(self) -> _Given:
        return _Given(2 * self.own - self.engine, self.engine, self.mask)

    @property
    def uncounted(self) -> _Given:
        return _Given(self.own, self.engine, torch.ones_like(self.mask))


@dataclass(frozen=True)
class Comparison:
    """Weights against their formula. Nothing in it has made the host wait for the device."""

    off: Tensor
    """The largest distance in units of what rounding explains, (); NaN where nothing could be compared."""
    cut: Tensor
    """Fraction of the tokens whose documented weight is outside of its bounds, ()."""
    like: Callable[[], str]
    """Names the calculation that gives these weights, where they are not the documented ones and one was found; the call waits
    for the device."""

    def weighed(self) -> Weighed:
        """What was found, of tensors that are on the host."""
        off = float(self.off)
        if math.isnan(off):
            return Weighed()
        return Weighed(min(off, NOT_WEIGHED), self.like() if off > 1 else "", float(self.cut))


class Weighed(msgspec.Struct, frozen=True):
    """What was found of importance weights; fields as in `RolloutValues`."""

    weights_off: float | None = None
    weights_like: str = ""
    weights_cut: float | None = None

    @property
    def wrong(self) -> bool:
        """Whether the weights are not the documented ones."""
        return self.weights_off is not None and self.weights_off > 1

    @classmethod
    def of_parts(cls, parts: Iterable[Weighed]) -> Weighed:
        """What was found of the worst part, with the mean of what the bounds cut."""
        compared = [part for part in parts if part.weights_off is not None]
        if not compared:
            return cls()
        worst = max(compared, key=lambda part: part.weights_off or 0.0)
        cut = [part.weights_cut for part in compared if part.weights_cut is not None]
        return msgspec.structs.replace(worst, weights_cut=sum(cut) / len(cut) if cut else None)


def compare(
    correction: Correction,
    weights: Tensor,
    own: Tensor,
    engine: Tensor,
    mask: Tensor,
    *,
    seen: Tensor | None = None,
    epsilon: float | None = None,
) -> Comparison:
    """Compare weights with those of the log-probs.

    Args:
        correction: How they are documented.
        weights: (B, T), or (B, 1) for whole sequences.
        own: Old log-probs of the trainer, (B, T).
        engine: Log-probs that the engine gave with the tokens that it sampled, (B, T); NaN where it gave none.
        mask: 1 on the tokens that count, (B, T).
        seen: The tokens whose weights are known, (B, T); None for all of them.
        epsilon: The distance of 1 to the next number in the dtype in which weights were computed; None for that of `weights`.
    """
    epsilon = torch.finfo(weights.dtype).eps if epsilon is None else epsilon
    known = ~engine.isnan()
    of_sequence = correction.level == "sequence" or (correction.gate is not None and correction.gate.level == "sequence")
    sure = mask.bool() & (known.all(-1, keepdim=True).expand_as(known) if of_sequence else known)
    if seen is not None:
        sure = sure & seen.bool()
    mask = mask.double()
    own, engine = own.double() * mask, engine.nan_to_num().double() * mask
    given = _Given(torch.where(known, own, engine), engine, mask)
    weights = weights.double().expand_as(mask)
    documented = importance_weights(correction, given)
    size = own.abs() + engine.abs() + 1
    of_weight = size.sum(-1, keepdim=True) if correction.level == "sequence" else size
    rounding = ROUNDINGS * epsilon * of_weight * documented.clamp(min=1.0)
    statistic = _statistic(correction, given)
    if correction.beyond == "0":
        # Rounding decides on which side of a bound a statistic is that lies on it.
        of_statistic = rounding
        if correction.gate is not None:
            of_gate = _mean(size, mask) if correction.gate.level == "sequence" else size
            of_statistic = ROUNDINGS * epsilon * of_gate * statistic.clamp(min=1.0)
        for bound in (correction.lower, correction.upper):
            sure &= (statistic - bound).abs() > of_statistic
    outside = ~_within(correction, statistic)
    return Comparison(
        torch.where(sure.any(), _off(weights, documented, rounding, sure), torch.nan),
        (outside & mask.bool()).sum() / mask.sum(),
        partial(_named, correction, weights, given, rounding, sure),
    )


def importance_weights(correction: Correction, given: _Given) -> Tensor:
    """The documented weights, (B, T), 0 where nothing counts.

    Args:
        correction: How they are computed.
        given: What they are computed from.
    """
    mask = given.mask
    weights = _ratios(correction, given)
    if correction.beyond == "cut off":
        weights = weights.clamp(correction.lower, correction.upper)
    else:
        weights = torch.where(_within(correction, _statistic(correction, given)), weights, 0.0)
    weights = weights * mask
    if not correction.normalized:
        return weights
    if correction.level == "sequence":
        counted = mask.sum(-1) > 0
        mean = (weights.sum(-1) / mask.sum(-1).clamp(min=1)).sum() / counted.sum()
    else:
        mean = weights.sum() / mask.sum()
    return torch.where(mean > 1e-8, weights / mean, weights)


def _ratios(correction: Correction, given: _Given) -> Tensor:
    """The weights without bounds and mean, (B, T)."""
    log_ratio, mask = given.log_ratio, given.mask
    if correction.level == "sequence":
        log_ratio = (log_ratio * mask).sum(-1, keepdim=True).expand_as(mask)
    return log_ratio.clamp(-correction.largest_log, correction.largest_log).exp()


def _statistic(correction: Correction, given: _Given) -> Tensor:
    """What is compared with the bounds, (B, T)."""
    gate, mask = correction.gate, given.mask
    if gate is None:
        return _ratios(correction, given)
    if gate.statistic == "ratio":
        found = given.log_ratio
    else:
        theirs, own = (log_probs.exp().clamp(CUT_PROBABILITY, 1 - CUT_PROBABILITY) for log_probs in (given.engine, given.own))
        found = (theirs - own).abs()
        if gate.statistic == "binary_kl":
            found = theirs * (theirs / own).log() + (1 - theirs) * ((1 - theirs) / (1 - own)).log()
    if gate.level == "sequence":
        found = _mean(found, mask)
    return found.exp() if gate.statistic == "ratio" else found


def _mean(of: Tensor, mask: Tensor) -> Tensor:
    """The mean over the tokens of each sequence that count, (B, T)."""
    return ((of * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)).expand_as(mask)


def _within(correction: Correction, statistic: Tensor) -> Tensor:
    return (statistic >= correction.lower) & (statistic <= correction.upper)


def _unbounded(correction: Correction) -> Correction:
    return msgspec.structs.replace(correction, upper=math.inf, lower=-math.inf)


def _others(correction: Correction, given: _Given) -> Iterator[tuple[str, Tensor]]:
    """What else gives weights, in words."""
    change = partial(msgspec.structs.replace, correction)
    mask = given.mask
    level: Level = "sequence" if correction.level == "token" else "token"
    yield "all of them 1", mask
    yield "the inverse of each", importance_weights(correction, given.inverse)
    yield "without their bounds", importance_weights(_unbounded(correction), given)
    if correction.gate is not None:
        yield from _others_of_gate(correction, correction.gate, given)
    else:
        yield f"those of a {level}", importance_weights(change(level=level), given)
    yield "with the other kind of mean", importance_weights(change(normalized=not correction.normalized), given)
    if math.isfinite(correction.lower) and math.isfinite(correction.upper):
        yield "without their lower bound", importance_weights(change(lower=-math.inf), given)
        yield "without their upper bound", importance_weights(change(upper=math.inf), given)
    if correction.beyond == "0":
        yield "1 within their bounds and 0 outside of them", _within(correction, _statistic(correction, given)) * mask
        if correction.gate is None:
            yield "cut off at their bounds, and not made 0", importance_weights(change(beyond="cut off"), given)
    else:
        yield "made 0 outside of their bounds, and not cut off", importance_weights(change(beyond="0"), given)
    yield "those of tokens that do not count too", importance_weights(correction, given.uncounted)
    yield "each with the square of its ratio", importance_weights(correction, given.squared)


def _others_of_gate(correction: Correction, gate: Gate, given: _Given) -> Iterator[tuple[str, Tensor]]:
    """What else gives weights where a statistic of its own decides whether they are made 0, in words."""
    change = partial(msgspec.structs.replace, correction)
    yield "cut off at their bounds, and not made 0", importance_weights(change(beyond="cut off", gate=None), given)
    for statistic, level in product(get_args(Statistic), get_args(Level)):
        other = Gate(statistic, level)
        if other != gate:
            words = f"made 0 by the {_STATISTICS[statistic]} of each {level}, and not by the {_STATISTICS[gate.statistic]}"
            yield f"{words} of each {gate.level}", importance_weights(change(gate=other), given)


def _named(correction: Correction, weights: Tensor, given: _Given, rounding: Tensor, sure: Tensor) -> str:
    others = _others(correction, given)
    return next((words for words, other in others if float(_off(weights, other, rounding, sure)) <= 1), "")


def _off(weights: Tensor, documented: Tensor, rounding: Tensor, sure: Tensor) -> Tensor:
    """The largest distance in roundings, ()."""
    return torch.where(sure, (weights - documented).abs() / rounding, 0.0).max()
