"""Advantages that a loop hands over, against the estimator that it names. N samples, or T timesteps of E actors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import torch

from rlstep_hooks.observe.advantages import Estimator, Rewards
from rlstep_hooks.observe.alternative_advantages import ENDS_EARLIER, Documented
from rlstep_hooks.observe.roundings import ABSOLUTE, RELATIVE
from rlstep_hooks.record.values import SHIFTED_DONES
from rlstep_hooks.systems.own_loop.ends import fit_of_ends

if TYPE_CHECKING:
    from torch import Tensor

EstimatorName = Literal["gae", "returns", "grpo", "dr_grpo", "rloo"]

STABILISERS = (1e-8, 1e-6, 1e-4)
"""Values that implementations of GRPO add to the group's standard deviation; each of them is accepted."""


@dataclass(frozen=True)
class Asked:
    """What a loop says about its advantages; see `LoopAudit.advantages`."""

    estimator: EstimatorName
    group: int | None = None
    values: Tensor | None = None
    last_values: Tensor | None = None
    dones: Tensor | None = None
    last_dones: Tensor | None = None
    final_values: Tensor | None = None
    mask: Tensor | None = None
    gamma: float = 1.0
    lam: float = 1.0


class Comparison(Documented):
    """Advantages of a loop, which may keep the ends of its episodes in several ways."""

    def fit(self) -> str:
        """The name of another calculation that gives these advantages; empty where none does."""
        fit, first = super().fit(), self.estimators[0]
        if fit == ENDS_EARLIER:
            return SHIFTED_DONES
        return fit_of_ends(first, self.given, self.advantages) if not fit and first.tokens == "gae" else fit


def compared_with(asked: Asked, rewards: Tensor, advantages: Tensor) -> Comparison:
    """The comparison that a loop asks for.

    Raises:
        ValueError: What it says does not fit together.
    """
    if asked.estimator not in get_args(EstimatorName):
        raise ValueError(f"estimator={asked.estimator!r}: known are {', '.join(get_args(EstimatorName))}")
    if rewards.shape != advantages.shape:
        raise ValueError(f"rewards have shape {tuple(rewards.shape)}, advantages {tuple(advantages.shape)}")
    if asked.estimator in ("gae", "returns"):
        return _over_time(asked, rewards, advantages)
    if rewards.dim() != 1 or not asked.group or rewards.shape[0] % asked.group:
        raise ValueError(
            f"{asked.estimator} needs one reward a sample, and group=samples of one prompt, which divides them"
        )
    given = Rewards(scores=rewards, groups=torch.arange(len(rewards), device=rewards.device) // asked.group)
    kinds: tuple[Estimator, ...] = (Estimator(baseline="others" if asked.estimator == "rloo" else "mean"),)
    if asked.estimator == "grpo":
        # With the unbiased deviation or the other one, as libraries differ.
        kinds = tuple(
            Estimator(baseline="mean", scale="group", biased=biased, stabiliser=added)
            for biased in (False, True)
            for added in STABILISERS
        )
    return Comparison(kinds, given, advantages)


def _over_time(asked: Asked, rewards: Tensor, advantages: Tensor) -> Comparison:
    if asked.estimator == "gae" and (asked.values is None or asked.values.shape != rewards.shape):
        raise ValueError("gae needs the critic's values, in the shape of the rewards")
    if asked.mask is not None and asked.mask.shape != rewards.shape:
        raise ValueError("mask has the shape of the rewards")

    def by_actor(of: Tensor) -> Tensor:
        """(E, T) of (T, E) or (T,)."""
        return of.detach().clone().reshape(rewards.shape[0], -1).T

    ends = None if asked.dones is None else by_actor(asked.dones).double()
    if asked.last_dones is not None:
        if ends is None or asked.last_dones.numel() != ends.shape[0]:
            raise ValueError("last_dones needs dones, and has one value for each actor")
        ends = torch.cat([ends[:, 1:], asked.last_dones.detach().clone().reshape(-1, 1).double()], dim=1)
    tokens = by_actor(rewards)
    if asked.final_values is not None:
        if ends is None or asked.estimator != "gae" or asked.final_values.shape != rewards.shape:
            raise ValueError("final_values are for gae with dones, and have the shape of the rewards")
        # What Stable-Baselines3 does too: the value of the last observation is part of the reward of the step that ended there.
        tokens = tokens.double() + asked.gamma * by_actor(asked.final_values).double() * (ends != 0)
    given = Rewards(
        tokens=tokens,
        mask=None if asked.mask is None else by_actor(asked.mask),
        values=None if asked.values is None else by_actor(asked.values),
        last_values=None if asked.last_values is None else asked.last_values.detach().clone().reshape(-1),
        goes_on=None if ends is None else 1 - ends,
    )
    estimator = Estimator(tokens="gae" if asked.estimator == "gae" else "returns", gamma=asked.gamma, lam=asked.lam)
    return Comparison((estimator,), given, by_actor(advantages))


def differs(known: Tensor, used: Tensor) -> Tensor:
    """1 where the advantages of a loss are not those of the rollout, as they are or with another mean and a positive factor; else 0."""
    known, used = known.double().flatten(), used.to(known.device).double().flatten()
    centred, other = known - known.mean(), used - used.mean()
    factor = (centred * other).sum() / (centred * centred).sum().clamp(min=1e-30)
    distance = (other - factor * centred).abs().max()
    # Rounding of the values themselves, which a mean and a quotient do not enlarge by more.
    size = other.abs().max() + used.abs().max() * 1e-3
    scaled = (factor > 0) & (distance <= 10 * RELATIVE * size + ABSOLUTE)
    return (~((known == used).all() | scaled)).float()
