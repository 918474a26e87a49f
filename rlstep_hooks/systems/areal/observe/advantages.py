"""AReaL's documented advantages, evaluated in float64 from the rewards. S samples of a rollout, T tokens of each.

Source: areal 1.0.4, areal/api/cli_args.py (`PPOActorConfig`, `NormConfig`), docs on advantage estimation. Without a critic, GAE is the
reward of the sample at its last counted token, discounted by gamma * lambda for each counted token before it. With a reference, a KL
penalty is the reward of each token besides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from rlstep_hooks.observe.advantages import Estimate
from rlstep_hooks.observe.alternative_advantages import first_fitting
from rlstep_hooks.observe.divergence import divergence
from rlstep_hooks.observe.roundings import FLOAT32_EPSILON, ROUNDINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

CLAMP = 10.0
"""The largest estimate of the divergence of a token (areal/utils/data.py `KLEstimator`)."""


@dataclass(frozen=True)
class Norm:
    """How numbers are normalised: "batch" or "group"; the mean alone, or mean and deviation."""

    level: str
    divides: bool
    unbiased: bool
    stabiliser: float

    def of(self, given: Estimate, mask: Tensor, groups: Tensor) -> Estimate:
        """Normalise counted numbers.

        Args:
            given: (S, T).
            mask: (S, T), 1 where a number counts.
            groups: (S,), the number of each sample's group.
        """
        own = groups if self.level == "group" else torch.zeros_like(groups)
        count = _summed(mask, own).clamp(min=1)
        centred = (given.values - _summed(given.values * mask, own) / count) * mask
        error = given.error + 2 * FLOAT32_EPSILON * (given.values * mask).abs().amax()
        if not self.divides:
            return Estimate(centred, error)
        squares = _summed(centred.square(), own)
        deviation = (squares / ((count - 1).clamp(min=1) if self.unbiased else count)).sqrt() + self.stabiliser
        values = centred / deviation
        return Estimate(values, error / deviation * (1 + values.abs()))


def _summed(values: Tensor, groups: Tensor) -> Tensor:
    """(S, 1), the sum over all numbers of each sample's group."""
    sums = values.sum(1)
    return torch.zeros_like(sums).index_add_(0, groups, sums)[groups][:, None]


@dataclass(frozen=True)
class Penalty:
    """The KL penalty that is part of the rewards of tokens."""

    coefficient: float
    estimator: str

    def of(self, apart: Apart, mask: Tensor) -> Estimate:
        """What is added to the reward of each token, (S, T)."""
        difference = (apart.old.double() - apart.reference.double()) * mask
        size = apart.old.double().abs() + apart.reference.double().abs()
        slope = torch.stack([torch.ones_like(difference), difference.abs(), (difference.abs().exp() - 1)]).amax(0)
        values = divergence(self.estimator, difference).clamp(-CLAMP, CLAMP)
        error = ROUNDINGS * FLOAT32_EPSILON * abs(self.coefficient) * (size * slope + values.abs()) * mask
        return Estimate(-self.coefficient * values * mask, error)


class Apart(NamedTuple):
    """What the penalty is computed from, (S, T)."""

    old: Tensor
    """Log-probs of the policy."""
    reference: Tensor


@dataclass(frozen=True)
class Documented:
    """What is configured of a run's advantages."""

    bias: float
    scaling: float
    clip: float
    decay: float
    """gamma * lambda."""
    rewards: Norm | None
    tokens: Norm | None
    penalty: Penalty | None = None

    @property
    def groups(self) -> bool:
        """Whether the samples of a prompt are normalised together, which AReaL finds by their number."""
        return any(norm is not None and norm.level == "group" for norm in (self.rewards, self.tokens))

    def of(self, rewards: Tensor, groups: Tensor, mask: Tensor, apart: Apart | None = None) -> Estimate:
        """The advantages, (S, T).

        Args:
            rewards: (S,), of the samples.
            groups: (S,), the number of each sample's prompt.
            mask: (S, T), 1 on tokens that count.
            apart: What a KL penalty is computed from; None where there is none.
        """
        scores = ((rewards.double() + self.bias) * self.scaling).clamp(-self.clip, self.clip)[:, None]
        found = Estimate(scores, ROUNDINGS * FLOAT32_EPSILON * scores.abs().amax().expand_as(scores))
        if self.rewards is not None:
            found = self.rewards.of(found, torch.ones_like(scores), groups)
        after = mask.flip(1).cumsum(1).flip(1) - mask
        weights = self.decay**after * mask
        found = Estimate(
            found.values * weights, found.error * weights + FLOAT32_EPSILON * (after + 1) * found.values.abs()
        )
        if self.penalty is not None and apart is not None:
            added = self.penalty.of(apart, mask)
            sums, errors = (_from_there_on(of, mask, self.decay) for of in (added.values, added.error))
            found = Estimate(found.values + sums, found.error + errors + FLOAT32_EPSILON * (after + 1) * sums.abs())
        return found if self.tokens is None else self.tokens.of(found, mask, groups)

    def fit(self, rewards: Tensor, groups: Tensor, mask: Tensor, observed: Tensor, apart: Apart | None = None) -> str:
        """Which other calculation gives the observed advantages; empty where none of the known ones does."""
        right = self.of(rewards, groups, mask, apart)
        others = ((words, other.of(rewards, groups, mask, apart)) for words, other in self._others())
        flipped = ("of the opposite sign", replace(right, values=-right.values))
        return first_fitting([flipped, *others], right, observed, mask)

    def _others(self) -> Iterator[tuple[str, Documented]]:
        if self.penalty is not None:
            turned = replace(self.penalty, coefficient=-self.penalty.coefficient)
            yield "those without the KL penalty", replace(self, penalty=None)
            yield "those with a KL penalty of the opposite sign", replace(self, penalty=turned)
        yield "those with gamma = lambda = 1", replace(self, decay=1.0)
        yield "those without the scaling of rewards", replace(self, scaling=1.0)
        yield "those without the bias of rewards", replace(self, bias=0.0)
        yield "those without the clip of rewards", replace(self, clip=torch.inf)
        if self.rewards is not None:
            yield "those of rewards that are not normalised", replace(self, rewards=None)
            yield from self._normalised("rewards", self.rewards)
        if self.tokens is not None:
            yield "not normalised over the tokens", replace(self, tokens=None)
            yield from self._normalised("tokens", self.tokens)

    def _normalised(self, of: str, norm: Norm) -> Iterator[tuple[str, Documented]]:
        def changed(**fields: Any) -> Documented:
            other: dict[str, Any] = {of: replace(norm, **fields)}
            return replace(self, **other)

        other = "batch" if norm.level == "group" else "group"
        yield f"those of {of} normalised over the {'rollout' if other == 'batch' else 'group'}", changed(level=other)
        if norm.divides:
            yield f"those of {of} that are divided by no standard deviation", changed(divides=False)
            yield (
                f"those of {of} with the other standard deviation (biased or not)",
                changed(unbiased=not norm.unbiased),
            )


def _from_there_on(of: Tensor, mask: Tensor, decay: float) -> Tensor:
    """(S, T), at each counted token the sum over it and those after it, discounted by the counted tokens between."""
    total, sums = torch.zeros_like(of[:, 0]), torch.zeros_like(of)
    for place in reversed(range(of.shape[1])):
        counts = mask[:, place]
        total = torch.where(counts > 0, of[:, place] + decay * total, total)
        sums[:, place] = total * counts
    return sums


def documented(actor: Any, group: int, *, reference: bool = False) -> Documented | str:
    """What a configuration documents, or why that is not compared.

    Args:
        actor: A `PPOActorConfig`.
        group: Samples of a prompt.
        reference: Whether there is a reference.
    """
    beside = {
        "kl_ctl without a reference penalises the policy's own log-probs": actor.kl_ctl != 0 and not reference,
        "overlong_reward_penalty changes rewards by lengths": actor.overlong_reward_penalty,
        "mask_no_eos_with_zero changes the rewards of samples that were cut off": actor.mask_no_eos_with_zero,
    }
    norms = {"reward_norm": actor.reward_norm, "adv_norm": actor.adv_norm}
    beside |= {f"{name}: its levels are not followed": not _followed(norm, group) for name, norm in norms.items()}
    reason = next((words for words, there in beside.items() if there), "")
    return reason or Documented(
        bias=actor.reward_bias,
        scaling=actor.reward_scaling,
        clip=actor.reward_clip,
        decay=actor.discount * actor.gae_lambda,
        rewards=_norm(actor.reward_norm),
        tokens=_norm(actor.adv_norm),
        penalty=Penalty(actor.kl_ctl, actor.kl_estimator) if actor.kl_ctl else None,
    )


def _followed(norm: Any, group: int) -> bool:
    """Whether mean and deviation are those of the same numbers: of the whole rollout, or of the samples of a prompt."""
    if norm is None:
        return True
    same = norm.mean_level is not None and norm.std_level in (None, norm.mean_level) and not norm.mean_leave1out
    return same and (norm.mean_level == "batch" or norm.group_size == group > 1)


def _norm(norm: Any) -> Norm | None:
    return None if norm is None else Norm(norm.mean_level, norm.std_level is not None, norm.std_unbiased, norm.eps)
