"""Documented estimators of advantages, evaluated in float64 on the rewards that a framework holds anyway.

Sources: GAE (arxiv.org/abs/1506.02438), GRPO (2402.03300), Dr. GRPO (2503.20783), RLOO (2402.14740), REINFORCE++ (2501.03262), ReMax
(2310.10505), OPO (2505.23585), GPG (2504.02546), Pass@k (2503.19595). What each framework sets is said where it is read.
Shapes: B samples or actors, T tokens or timesteps of each.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

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

ROUNDINGS = 32
"""Roundings of the largest term that sums and differences of some thousand numbers in float32 explain."""
RELATIVE = 1e-4
"""Relative error of a division and of a standard deviation."""
ABSOLUTE = 1e-6

LARGEST = 1 << 22
"""Tokens of a rollout beyond which nothing is recomputed, so that the copies in float64 stay below 200 MB."""


@dataclass(frozen=True)
class Rewards:
    """What advantages are computed from."""

    tokens: Tensor
    """(B, T), rewards of tokens or timesteps; with `scores`, what is added to them there (a KL penalty)."""
    mask: Tensor
    """(B, T), not 0 where a token counts."""
    scores: Tensor | None = None
    """(B,), rewards of whole samples that stand at their last counted token; None where they are in `tokens`."""
    groups: Tensor | None = None
    """(B,), number of each sample's prompt."""
    values: Tensor | None = None
    """(B, T), the critic's."""
    last_values: Tensor | None = None
    """(B,), the critic's after the last timestep; None for 0."""
    goes_on: Tensor | None = None
    """(B, T), 0 where an episode ends with the timestep; None where none does."""
    given: Tensor | None = None
    """(B,), the baseline "given"."""


@dataclass(frozen=True)
class Estimate:
    """Numbers, and how far from them rounding may bring those of the framework."""

    values: Tensor
    error: Tensor

    def off(self, observed: Tensor, counted: Tensor) -> Tensor:
        """The largest distance of observed numbers from these where they are counted, in units of what rounding explains."""
        relative = max(RELATIVE, 4 * torch.finfo(observed.dtype).eps)
        allowed = self.error + relative * self.values.abs() + ABSOLUTE
        distance = ((observed.double() - self.values).abs() / allowed)[counted.bool()]
        return distance.nan_to_num(nan=torch.inf).max() if distance.numel() else torch.zeros((), dtype=torch.float64)


@dataclass(frozen=True)
class Estimator:
    """What turns rewards into advantages."""

    baseline: Baseline = "none"
    scale: Scale = "none"
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
        """The documented advantages, (B, T) in float64."""
        mask = (given.mask != 0).double()
        tokens = given.tokens.double()
        scores = tokens.sum(1) if given.scores is None else given.scores.double()
        shaped = self._shaped(scores, given, mask)
        if self.tokens == "spread":
            found = Estimate(shaped.values[:, None] * mask, shaped.error[:, None].expand_as(mask))
        else:
            if given.scores is not None:
                tokens = tokens + _at_last(shaped.values, mask)
            found = self._over_time(tokens, given, mask)
            if given.scores is not None:
                found = replace(found, error=found.error + shaped.error[:, None])
            elif self.baseline == "given" and given.given is not None:
                found = replace(found, values=found.values - given.given.double()[:, None] * mask)
        if self.whitening != "none":
            found = _whitened(found, mask, full=self.whitening == "full", unbiased=self.unbiased)
        return found

    def _shaped(self, scores: Tensor, given: Rewards, mask: Tensor) -> Estimate:
        """Rewards of samples (B,) once baseline, deviation and limits have acted."""
        groups = torch.arange(len(scores), device=scores.device) if given.groups is None else given.groups
        size = (_rounding(given.tokens, given.scores) * scores.abs().max()).expand_as(scores)
        values = scores
        if self.baseline == "mean":
            values = scores - _group_mean(scores, groups)
        elif self.baseline == "others":
            count = _count(groups)
            values = torch.where(
                count > 1, (scores - _group_mean(scores, groups)) * count / (count - 1).clamp(min=1), scores
            )
        elif self.baseline == "whole":
            values = scores - scores.mean()
        elif self.baseline == "lengths":
            lengths = mask.sum(1)
            mean = _group_sum(scores * lengths, groups) / _group_sum(lengths, groups)
            values = torch.where(_count(groups) > 1, scores - mean, scores)
        elif self.baseline == "given" and given.given is not None:
            values = scores - given.given.double()
        elif self.baseline == "second":
            values = _over_second(scores, groups)
        if self.baseline == "mean":
            # The baseline of a group of one is 0 (core_algos.py of verl 0.9.1).
            values = torch.where(_count(groups) > 1, values, scores)
        if self.per_nonzero:
            factor = len(scores) / scores.count_nonzero().clamp(min=1)
            values, size = values * factor, size * factor
        if self.scale != "none":
            deviation = (
                _group_std(scores, groups, biased=self.biased)
                if self.scale == "group"
                else scores.std().expand_as(scores)
            )
            divisor = deviation + self.stabiliser
            values = torch.where(divisor > 0, values / divisor, values)
            size = torch.where(divisor > 0, size / divisor, size) * (1 + values.abs())
        if self.limits is not None:
            values = values.clamp(*self.limits)
        return Estimate(values, size)

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
    """(B, T), less their mean and over their unbiased standard deviation, both of the tokens that count."""
    values = values.double()
    error = _EPSILON * values.abs()
    return _whitened(Estimate(values, error), (mask != 0).double(), full=True, unbiased=True)


@dataclass(frozen=True)
class Documented:
    """Advantages beside what they have to be.

    Args:
        estimator: What is configured.
        given: What they were computed from.
        advantages: (B, T), as the framework has them.
        returns: (B, T), the targets of the critic's values; None without a critic.
    """

    estimator: Estimator
    given: Rewards
    advantages: Tensor
    returns: Tensor | None = None

    def off(self) -> Tensor:
        """The largest distance from the documented ones, in units of what rounding explains."""
        off = self._off_advantages()
        if self.returns is not None:
            off = torch.maximum(off, lambda_returns(self.estimator, self.given).off(self.returns, self.given.mask))
        return off

    def _off_advantages(self) -> Tensor:
        return self.estimator.of(self.given).off(self.advantages, self.given.mask)

    def fit(self) -> str:
        """Which other calculation gives them; empty where none does. Waits for the device, so only where they are wrong."""
        if self.returns is not None and float(self._off_advantages()) <= 1:
            return "right, and the critic's targets are not what advantages and values add up to"
        return fitting(self.estimator, self.given, self.advantages)


ENDS_EARLIER = "those with each end of an episode one timestep earlier"


def fitting(estimator: Estimator, given: Rewards, observed: Tensor) -> str:
    """Which other known calculation gives these advantages up to rounding; empty where none does."""
    right = estimator.of(given).values
    others = itertools.chain(_others(estimator, given), _with_earlier_ends(estimator, given, observed))
    for name, estimate in others:
        # One that the documented advantages fit too is too uncertain to explain others.
        if float(estimate.off(observed, given.mask)) <= 1 < float(estimate.off(right, given.mask)):
            return name
    return ""


def _others(estimator: Estimator, given: Rewards) -> Iterator[tuple[str, Estimate]]:
    """Advantages that the documented ones are mistaken for."""
    right = estimator.of(given)
    yield "all 0", replace(right, values=torch.zeros_like(right.values))
    yield "of the opposite sign", replace(right, values=-right.values)
    if estimator.tokens == "spread":
        one = _first_counted(right, given.mask)
        for shift, words in (
            (-1, "at each sample those of the sample after it"),
            (1, "at each sample those of the sample before it"),
        ):
            moved = Estimate(one.values.roll(shift, 0), one.error.roll(shift, 0))
            yield words, Estimate(moved.values * (given.mask != 0), moved.error.expand_as(right.error))
    else:
        for shift, words in (
            (-1, "at each token those of the token after it"),
            (1, "at each token those of the token before it"),
        ):
            yield words, Estimate(right.values.roll(shift, 1), right.error.roll(shift, 1))
        for shift, words in (
            (-1, "at each sample those of the sample after it"),
            (1, "at each sample those of the sample before it"),
        ):
            yield words, Estimate(right.values.roll(shift, 0), right.error.roll(shift, 0))
    yield from ((words, other.of(given)) for words, other in _other_estimators(estimator))
    if given.groups is not None and estimator.baseline in ("mean", "others", "second"):
        # Groups whose samples stand apart where those of a prompt stand together: as many groups, or as large ones.
        places = torch.arange(len(given.groups), device=given.groups.device)
        prompts = max(len(given.groups.unique()), 1)
        for distance in (prompts, len(places) // prompts):
            yield "those of groups taken across prompts", estimator.of(replace(given, groups=places % distance))
        yield "those of groups shifted by one sample", estimator.of(replace(given, groups=given.groups.roll(1)))
    if given.values is not None and estimator.tokens == "gae":
        yield (
            "those without the critic's values",
            estimator.of(replace(given, values=torch.zeros_like(given.values), last_values=None)),
        )
        if given.last_values is not None:
            yield "those without the value after the last timestep", estimator.of(replace(given, last_values=None))
        if given.goes_on is not None:
            yield "those that go on over the ends of episodes", estimator.of(replace(given, goes_on=None))
        yield "the targets of the critic's values (returns)", lambda_returns(estimator, given)
    if given.scores is not None and bool(given.tokens.any()):
        zero = torch.zeros_like(given.tokens)
        yield "those without the KL penalty", estimator.of(replace(given, tokens=zero))
        yield "those with a KL penalty of the opposite sign", estimator.of(replace(given, tokens=-given.tokens))
    yield (
        "the rewards themselves",
        Estimator(tokens="spread" if given.scores is not None else estimator.tokens).of(given),
    )


def _with_earlier_ends(estimator: Estimator, given: Rewards, observed: Tensor) -> Iterator[tuple[str, Estimate]]:
    """Advantages of ends that come one timestep earlier. Whether an episode ends with the last timestep is not known then: for each row
    the nearer of both is taken."""
    if given.goes_on is None:
        return
    later, last = given.goes_on[:, 1:].double(), torch.ones_like(given.goes_on[:, :1], dtype=torch.float64)
    on, over = (
        estimator.of(replace(given, goes_on=torch.cat([later, goes_on], dim=1))) for goes_on in (last, 0 * last)
    )
    distances = [(observed.double() - each.values).abs().amax(1, keepdim=True) for each in (on, over)]
    nearer = distances[0] <= distances[1]
    values, error = torch.where(nearer, on.values, over.values), torch.where(nearer, on.error, over.error)
    yield ENDS_EARLIER, Estimate(values, error)


def _other_estimators(estimator: Estimator) -> Iterator[tuple[str, Estimator]]:
    divisors: dict[Scale, str] = {
        "group": "divided by the standard deviation of the group",
        "rollout": "divided by the standard deviation of the whole rollout",
        "none": "divided by no standard deviation",
    }
    baselines: dict[Baseline, str] = {
        "mean": "around the mean of the group",
        "others": "around the mean of the group's other samples",
        "whole": "around the mean of the whole rollout",
        "none": "without the baseline",
    }
    if estimator.baseline in ("mean", "others", "whole", "lengths", "second"):
        for scale, words in divisors.items():
            if scale != estimator.scale:
                stabiliser = estimator.stabiliser or ABSOLUTE
                yield words, replace(estimator, scale=scale, stabiliser=stabiliser)
        for baseline, words in baselines.items():
            if baseline != estimator.baseline:
                yield words, replace(estimator, baseline=baseline)
    if estimator.whitening != "none":
        yield "not normalised", replace(estimator, whitening="none")
    if estimator.whitening != "mean":
        yield "centred over the tokens and not divided", replace(estimator, whitening="mean")
    if estimator.whitening != "full":
        yield "normalised over all tokens", replace(estimator, whitening="full")
    if estimator.limits is not None:
        yield "without the limits of the rewards", replace(estimator, limits=None)
    if estimator.tokens == "gae":
        yield "those with gamma and lambda swapped", replace(estimator, gamma=estimator.lam, lam=estimator.gamma)
        yield "those with lambda = 1", replace(estimator, lam=1.0)
        yield "those with lambda = 0", replace(estimator, lam=0.0)
    if estimator.tokens != "spread":
        yield "those with gamma = 1", replace(estimator, gamma=1.0)
        yield "those that pass over tokens that do not count", replace(estimator, skips=True)


# Sums within groups


def _count(groups: Tensor) -> Tensor:
    return _group_sum(torch.ones(len(groups), dtype=torch.float64, device=groups.device), groups)


def _group_sum(values: Tensor, groups: Tensor) -> Tensor:
    """(B,), the sum of each sample's group."""
    _, inverse = groups.unique(return_inverse=True)
    return torch.zeros(len(values), dtype=values.dtype, device=values.device).index_add_(0, inverse, values)[inverse]


def _group_mean(values: Tensor, groups: Tensor) -> Tensor:
    return _group_sum(values, groups) / _count(groups)


def _group_std(values: Tensor, groups: Tensor, *, biased: bool) -> Tensor:
    """(B,), the standard deviation of each sample's group; 1 for a group of one, as verl has it."""
    squares = _group_sum((values - _group_mean(values, groups)) ** 2, groups)
    count = _count(groups)
    return torch.where(count > 1, (squares / (count - (0 if biased else 1)).clamp(min=1)).sqrt(), 1.0)


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


def _whitened(given: Estimate, mask: Tensor, *, full: bool, unbiased: bool) -> Estimate:
    """Normalised over the counted tokens (B, T)."""
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


def _first_counted(given: Estimate, mask: Tensor) -> Estimate:
    """(B, 1), the numbers of each sample's first counted token."""
    first = (mask != 0).int().argmax(1, keepdim=True)
    return Estimate(given.values.gather(1, first), given.error.gather(1, first))
