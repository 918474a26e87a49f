"""Documented estimators of advantages, evaluated in float64 on the rewards that a framework holds anyway.

Sources: GAE (arxiv.org/abs/1506.02438), GRPO (2402.03300), Dr. GRPO (2503.20783), RLOO (2402.14740), REINFORCE++ (2501.03262), ReMax
(2310.10505), OPO (2505.23585), GPG (2504.02546), Pass@k (2503.19595). What each framework sets is said where it is read.
Shapes: B samples or actors, T tokens or timesteps of each. Without tokens, several rollouts of B samples go at once: (..., B).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from rlstep_hooks.observe.roundings import ABSOLUTE, RELATIVE, ROUNDINGS

Baseline = Literal["none", "mean", "others", "whole", "lengths", "given", "second"]
"""What is subtracted from the reward of a sample: nothing, the mean of its group, that of the group's other samples, that of the whole
rollout, the mean of the group weighted by lengths (OPO), a reward that was given for it (ReMax); or, for the best of a group alone, the
second best (Pass@k)."""
Scale = Literal["none", "group", "rollout"]
"""The standard deviation that the difference is divided by."""
Tokens = Literal["spread", "returns", "gae"]
"""How tokens get theirs: each that of its sample, the discounted sum of rewards from there on, or GAE with a critic's values."""
Whitening = Literal["none", "mean", "full"]
"""What is normalised over all counted tokens: nothing, the mean, or mean and standard deviation."""

LARGEST = 1 << 22
"""Tokens of a rollout beyond which nothing is recomputed, so that the copies in float64 stay below 200 MB."""


@dataclass(frozen=True)
class Rewards:
    """What advantages are computed from: `tokens`, `scores` or both."""

    tokens: Tensor | None = None
    """(B, T), rewards of tokens or timesteps; with `scores`, what is added to them there (a KL penalty); None for samples alone."""
    mask: Tensor | None = None
    """(B, T), or (B,) of samples alone: not 0 where they count; None where all do."""
    scores: Tensor | None = None
    """(B,), rewards of whole samples that stand at their last counted token; None where they are in `tokens`. Else (..., B)."""
    groups: Tensor | None = None
    """(B,), number of each sample's prompt, from 0 and below B; None where each has its own."""
    sizes: Tensor | None = None
    """(..., 1), the largest sum of the magnitudes that a score was added up from; None for that of the scores themselves."""
    functions: Tensor | None = None
    """(..., B, F), what each reward function gave, NaN where it gave nothing; only `each_function` needs them."""
    weights: Tensor | None = None
    """(..., F), the weight of each reward function."""
    there: Tensor | None = None
    """(..., B), False where a sample was given no reward: it is left out of means and deviations, and its advantage is 0; None where
    each was given one."""
    values: Tensor | None = None
    """(B, T), the critic's."""
    last_values: Tensor | None = None
    """(B,), the critic's after the last timestep; None for 0."""
    goes_on: Tensor | None = None
    """(B, T), 0 where an episode ends with the timestep; None where none does."""
    given: Tensor | None = None
    """(B,), the baseline "given"."""

    @property
    def counted(self) -> Tensor | None:
        """The mask in float64, (B, T) of tokens; None where it counts all samples."""
        if self.mask is None and self.tokens is not None:
            return torch.ones_like(self.tokens, dtype=torch.float64)
        return None if self.mask is None else (self.mask != 0).double()


@dataclass(frozen=True)
class Estimate:
    """Documented numbers, and how far rounding may bring the framework's from them."""

    values: Tensor
    error: Tensor

    def distances(self, observed: Tensor) -> Tensor:
        """How far observed numbers are from these, each in units of what rounding explains."""
        relative = max(RELATIVE, 4 * torch.finfo(observed.dtype).eps)
        allowed = self.error + relative * self.values.abs() + ABSOLUTE
        return (observed.double() - self.values).abs() / allowed

    def off(self, observed: Tensor, counted: Tensor | None = None) -> Tensor:
        """The largest of these distances where numbers are counted; None counts all."""
        distance = self.distances(observed)
        if counted is not None:
            distance = distance[counted.bool()]
        return distance.nan_to_num(nan=torch.inf).max() if distance.numel() else torch.zeros((), dtype=torch.float64)


@dataclass(frozen=True)
class Estimator:
    """What turns rewards into advantages."""

    baseline: Baseline = "none"
    scale: Scale = "none"
    of_differences: bool = False
    """Whether the deviation of the rollout is that of the differences from the baseline, whose mean is subtracted too."""
    each_function: bool = False
    """Whether each function's rewards are normalised before they are summed, and their sum over the whole rollout after that (GDPO)."""
    stabiliser: float = 0.0
    """Added to a standard deviation."""
    biased: bool = False
    """Whether the variance of a group is divided by its size, and not by one less."""
    tokens: Tokens = "spread"
    gamma: float = 1.0
    lam: float = 1.0
    whitening: Whitening = "none"
    unbiased: bool = False
    """Whether the variance of whitening divides by one less than the number of tokens."""
    per_nonzero: bool = False
    """Whether advantages are multiplied by the samples over those whose reward is not 0 (GPG)."""
    skips: bool = False
    """Whether tokens that do not count are passed over (a tool's), or stand for rewards and values of 0."""
    limits: tuple[float, float] | None = None
    """Bounds that `scores` are clipped to once the baseline is subtracted."""

    def of(self, given: Rewards) -> Estimate:
        """The documented advantages, (B, T) in float64; of samples without tokens (..., B)."""
        mask, tokens = given.counted, given.tokens
        shaped = self._shaped(given, mask)
        if tokens is None or mask is None:
            found = shaped
        elif self.tokens == "spread":
            found = Estimate(shaped.values[:, None] * mask, shaped.error[:, None].expand_as(mask))
        elif given.scores is not None:
            found = self._over_time(tokens.double() + _at_last(shaped.values, mask), given, mask)
            found = replace(found, error=found.error + shaped.error[:, None])
        else:
            found = self._over_time(tokens.double(), given, mask)
            if self.baseline == "given" and given.given is not None:
                found = replace(found, values=found.values - given.given.double()[:, None] * mask)
        if self.whitening != "none":
            found = _whitened(found, mask, full=self.whitening == "full", unbiased=self.unbiased)
        return found

    def _shaped(self, given: Rewards, mask: Tensor | None) -> Estimate:
        """Rewards of samples (..., B) once baseline, deviation and limits have acted."""
        scores = given.scores
        if self.each_function and given.functions is not None and given.groups is not None:
            summed = self._each_normalised(given, given.functions.double().mT, _Groups(given.groups))
            return Estimator(baseline="whole", scale="rollout", stabiliser=self.stabiliser).of(summed)
        if scores is None:
            assert given.tokens is not None, "rewards of tokens or of samples"
            scores = given.tokens.double().sum(1)
        scores = scores.double()
        numbers = torch.arange(scores.shape[-1], device=scores.device) if given.groups is None else given.groups
        groups, there = _Groups(numbers, given.there), given.there
        sizes = scores.abs().amax(-1, keepdim=True) if given.sizes is None else given.sizes
        size = (_rounding(given.tokens, given.scores) * sizes).expand_as(scores)
        values = self._less_baseline(scores, groups, given, mask)
        # A group of one has no deviation, so it does not matter that its baseline is 0.
        centred = values if self.baseline == "mean" else None
        if self.per_nonzero:
            factor = len(scores) / scores.count_nonzero().clamp(min=1)
            values, size = values * factor, size * factor
        if there is not None and self.baseline == "others":  # without another there is no baseline, and so no advantage
            there = there & groups.several
        if self.scale != "none":
            if self.scale == "group":
                centred = scores - groups.sum(scores) / groups.count if centred is None else centred
                deviation = groups.std(centred, biased=self.biased)
            else:
                deviation = _std(values if self.of_differences else scores, there)
            if self.scale == "rollout" and self.of_differences:
                values = values - _mean(values, there)
            divisor = deviation + self.stabiliser
            divisor = torch.where(divisor > 0, divisor, 1.0)
            values = values / divisor
            size = size / divisor * (1 + values.abs())
        if self.limits is not None:
            values = values.clamp(*self.limits)
        if there is not None:
            values, size = torch.where(there, values, 0.0), torch.where(there, size, 0.0)
        return Estimate(values, size)

    def _less_baseline(self, scores: Tensor, groups: _Groups, given: Rewards, mask: Tensor | None) -> Tensor:
        if self.baseline == "whole":
            return scores - _mean(scores, given.there)
        if self.baseline == "given" and given.given is not None:
            return scores - given.given.double()
        if self.baseline == "second":
            return _over_second(scores, groups.numbers)
        if self.baseline == "lengths" and mask is not None:
            lengths = mask.sum(1)
            values = scores - groups.sum(scores * lengths) / groups.sum(lengths)
        elif self.baseline in ("mean", "others"):
            values = scores - groups.sum(scores) / groups.count
        else:
            return scores
        if self.baseline == "others":
            values = values * groups.count / (groups.count - 1).clamp(min=1)
        # The baseline of a group of one is 0 (core_algos.py of verl 0.9.1). A sample that was left alone in its group is its own mean.
        return torch.where(groups.several, values, scores if given.there is None else 0.0)

    def _each_normalised(self, given: Rewards, functions: Tensor, groups: _Groups) -> Rewards:
        """The weighted sum of each function's rewards, (..., F, B), normalised within their groups over those that it gave."""
        there = ~functions.isnan()
        rewards, count = torch.where(there, functions, 0.0), groups.sum(there.double())
        centred = functions - groups.sum(rewards) / count
        squares = groups.sum(torch.where(there, centred, 0.0) ** 2)
        deviation = (squares / (count - 1)).sqrt() + self.stabiliser
        weights = torch.ones_like(deviation) if given.weights is None else given.weights.to(functions).unsqueeze(-1)
        sizes = rewards.abs().amax((-2, -1), keepdim=True) * weights.abs() / deviation
        return Rewards(
            scores=(centred / deviation * weights).nansum(-2),
            there=given.there,
            sizes=sizes.nan_to_num().sum(-2).amax(-1, keepdim=True),
        )

    def _over_time(self, tokens: Tensor, given: Rewards, mask: Tensor) -> Estimate:
        """Sums of rewards or of the critic's differences from each token on."""
        skips = mask if self.skips else torch.ones_like(mask)
        goes_on = torch.ones_like(mask) if given.goes_on is None else (given.goes_on != 0).double()
        epsilon = _rounding(given.tokens, given.scores, given.values)
        if self.tokens == "gae" and given.values is not None:
            values, decay = given.values.double(), self.gamma * self.lam
            if not self.skips:
                tokens, values = tokens * mask, values * mask
            last = torch.zeros_like(values[:, 0]) if given.last_values is None else given.last_values.double()
            after = _following(values, skips, last)
            differences = tokens + self.gamma * after * goes_on - values
            sizes = tokens.abs() + self.gamma * after.abs() + values.abs()
        else:
            decay, differences = self.gamma, tokens if self.skips else tokens * mask
            sizes = differences.abs()
        decays = decay * goes_on * skips + (1 - skips)
        found = Estimate(_sums(differences * skips, decays), epsilon * _sums(sizes * skips, decays))
        return found if self.tokens == "gae" else Estimate(found.values * mask, found.error)


_EPSILON = float(ROUNDINGS * torch.finfo(torch.float32).eps)


def _rounding(*given: Tensor | None) -> float:
    """Relative error of sums of numbers that are kept in these dtypes."""
    kept = [float(torch.finfo(of.dtype).eps) for of in given if of is not None and of.is_floating_point()]
    return max([_EPSILON, *(4 * epsilon for epsilon in kept)])


def lambda_returns(estimator: Estimator, given: Rewards) -> Estimate:
    """The targets of the critic's values: GAE's advantages before they are normalised, plus the values."""
    assert given.values is not None
    plain = replace(estimator, whitening="none").of(given)
    return Estimate(plain.values + given.values.double(), plain.error + _EPSILON * given.values.double().abs())


def normalised(values: Tensor, mask: Tensor) -> Estimate:
    """Subtract the mean of the counted tokens from (B, T) values, and divide by the unbiased standard deviation of these
    tokens."""
    values = values.double()
    error = _EPSILON * values.abs()
    return _whitened(Estimate(values, error), (mask != 0).double(), full=True, unbiased=True)


class _Groups:
    """Which samples are of one prompt.

    Args:
        numbers: (B,), of each sample's group, from 0 and below B.
    """

    def __init__(self, numbers: Tensor, there: Tensor | None = None) -> None:
        self.numbers = numbers
        self.there = there
        """(..., B), which samples count; None where all do."""

    @cached_property
    def count(self) -> Tensor:
        """(..., B), the samples of each sample's group."""
        ones = torch.ones(len(self.numbers), dtype=torch.float64, device=self.numbers.device)
        return self.sum(ones if self.there is None else ones.expand(self.there.shape))

    @cached_property
    def several(self) -> Tensor:
        """(..., B), whether each sample's group has others."""
        return self.count > 1

    def sum(self, values: Tensor) -> Tensor:
        """(..., B), the sum of each sample's group."""
        values = values if self.there is None else torch.where(self.there, values, 0.0)
        return torch.zeros_like(values).index_add_(-1, self.numbers, values)[..., self.numbers]

    def std(self, differences: Tensor, *, biased: bool) -> Tensor:
        """(..., B), the standard deviation of each sample's group, from the differences from its mean; 1 for a group of one, as verl
        has it."""
        freedom = self.count if biased else (self.count - 1).clamp(min=1)
        return torch.where(self.several, (self.sum(differences**2) / freedom).sqrt(), 1.0)


def _mean(values: Tensor, there: Tensor | None) -> Tensor:
    """(..., 1), the mean of all samples that count."""
    if there is None:
        return values.mean(-1, keepdim=True)
    return torch.where(there, values, 0.0).sum(-1, keepdim=True) / there.sum(-1, keepdim=True).clamp(min=1)


def _std(values: Tensor, there: Tensor | None) -> Tensor:
    """(..., 1), the standard deviation of all samples that count; 0 where there is one."""
    if there is None:
        return values.std(-1, keepdim=True)
    squares = torch.where(there, values - _mean(values, there), 0.0).square().sum(-1, keepdim=True)
    return (squares / (there.sum(-1, keepdim=True) - 1).clamp(min=1)).sqrt()


def _over_second(scores: Tensor, groups: Tensor) -> Tensor:
    """(B,), for the best of each group its distance from the second best, else 0."""
    found = torch.zeros_like(scores)
    for group in groups.unique():
        rows = (groups == group).nonzero().flatten()
        best, places = scores[rows].topk(min(2, len(rows)))
        if len(rows) > 1:
            found[rows[places[0]]] = best[0] - best[1]
    return found


# Sums over time


def _at_last(scores: Tensor, mask: Tensor) -> Tensor:
    """(B, T), a sample's reward at its last counted token, or at the last of all where none counts."""
    places = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    last = torch.where(mask > 0, places, -1).amax(1, keepdim=True)
    return torch.where(places == last % mask.shape[1], scores[:, None], 0.0)


def _sums(terms: Tensor, decays: Tensor) -> Tensor:
    """(B, T), s[t] = terms[t] + decays[t] * s[t + 1], by doubling the reach of each sum: log2(T) passes and no loop over time."""
    sums, factors, reach = terms.clone(), decays.clone(), 1
    while reach < terms.shape[1]:
        further = torch.zeros_like(sums)
        further[:, :-reach] = sums[:, reach:]
        sums = sums + factors * further
        rest = torch.zeros_like(factors)
        rest[:, :-reach] = factors[:, reach:]
        factors = factors * rest
        reach *= 2
    return sums


def _following(values: Tensor, counted: Tensor, last: Tensor) -> Tensor:
    """(B, T), the value of the next counted token, and after the last of them `last`."""
    held = torch.cat([values * counted, last[:, None]], 1)
    passed = torch.cat([1 - counted, torch.zeros_like(last)[:, None]], 1)
    return _sums(held, passed)[:, 1:]


def _whitened(given: Estimate, mask: Tensor | None, *, full: bool, unbiased: bool) -> Estimate:
    """Normalised over the counted tokens (B, T), or over samples that have none."""
    mask = torch.ones_like(given.values) if mask is None else mask
    count = mask.sum().clamp(min=1)
    mean = (given.values * mask).sum() / count
    centred = given.values - mean
    error = given.error + (given.error * mask).max() + _EPSILON * (given.values * mask).abs().max()
    if not full:
        return Estimate(centred, error)
    variance = (centred.square() * mask).sum() / count
    if unbiased:
        variance = variance * count / (count - 1).clamp(min=1)
    # 1e-8 is what frameworks add to the variance, or its least (verl torch_functional.py, OpenRLHF experience_maker.py).
    divisor = (variance + 1e-8).sqrt()
    least = variance.clamp(min=1e-8).sqrt()
    values = centred / divisor
    return Estimate(values, error / least * (1 + values.abs()) + (centred / least - values).abs())
