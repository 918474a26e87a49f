"""OpenRLHF's documented loss of the critic, in float64, of what a micro-batch was trained with. B samples, T completion tokens.

Source: OpenRLHF 0.11.2, models/loss.py:275 (`ValueLoss`) and `aggregate_loss`, trainer/ray/ppo_critic.py:121 `training_step`;
arxiv.org/abs/1707.06347, and 2005.12729 for the clip of values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlstep_hooks.observe.alternative_losses import of_other_size, without_last
from rlstep_hooks.systems.openrlhf.observe.loss import EDGE_OF_CLIP, Totals, aggregated, alone

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class ValueSettings:
    """What of the arguments the formula needs."""

    clip: float | None
    """How far a value may move from its old one; None without a clip."""


@dataclass(frozen=True, kw_only=True)
class ValueInputs(Totals):
    """What a loss was computed from; (B, T) in float64."""

    values: Tensor
    old: Tensor
    targets: Tensor


def read_value_settings(args: Any) -> ValueSettings:
    """The settings of a run's arguments."""
    clip = args.critic.value_clip
    return ValueSettings(None if clip is None else float(clip))


def documented_value_loss(settings: ValueSettings, given: ValueInputs) -> tuple[Tensor, Tensor]:
    """The loss by its formula, and what one rounding of each of its terms amounts to, both of shape ()."""
    apart = (given.values - given.targets).abs()
    terms, roundings = apart.square(), apart.square()
    if settings.clip is not None:
        moved = given.values - given.old
        clipped = given.old + moved.clamp(-settings.clip, settings.clip)
        distance = (clipped - given.targets).abs()
        terms = torch.maximum(terms, distance.square())
        # The sum of the old value and what it moved is rounded before it is compared with the target.
        roundings = torch.maximum(roundings, distance.square() + distance * (clipped.abs() + moved.abs()))
    value = aggregated(terms, given, token_level=True)
    return value / 2, aggregated(roundings * given.epsilon, given, token_level=True) / 2


def documented_value_gradient(settings: ValueSettings, given: ValueInputs) -> tuple[Tensor, Tensor]:
    """(B, T), the gradient of the documented loss at the values, and what one rounding of each of its terms amounts to: infinite where
    a rounding decides whether the clip acts."""
    leaf = given.values.detach().requires_grad_()
    value, _ = documented_value_loss(settings, replace(given, values=leaf))
    (gradient,) = torch.autograd.grad(value, leaf)
    sizes = (given.values.abs() + given.targets.abs()) * given.mask / given.tokens * given.ranks
    if settings.clip is None:
        return gradient, sizes * given.epsilon
    moved = given.values - given.old
    clipped = given.old + moved.clamp(-settings.clip, settings.clip)
    plain, bounded = (given.values - given.targets).square(), (clipped - given.targets).square()
    tie = (plain - bounded).abs() < EDGE_OF_CLIP * (plain + bounded)
    edge = (moved.abs() > settings.clip * (1 - EDGE_OF_CLIP)) & (
        tie | (moved.abs() < settings.clip * (1 + EDGE_OF_CLIP))
    )
    return gradient, torch.where(edge, torch.inf, sizes * given.epsilon)


def value_alternatives(settings: ValueSettings, given: ValueInputs, microbatches: int) -> Iterator[tuple[str, float]]:
    """Losses that the documented one is mistaken for, in words that follow "the critic's loss is"."""

    def value(settings: ValueSettings = settings, given: ValueInputs = given) -> float:
        return float(documented_value_loss(settings, given)[0])

    documented = value()
    yield "the documented one with its sign flipped", -documented
    yield "that without the clip of values", value(ValueSettings(None))
    if settings.clip is None:
        yield "that with a clip of values at 0.2", value(ValueSettings(0.2))
    else:
        yield "the smaller of the clipped and the plain error, not the larger", _smaller(settings.clip, given)
    yield "that of targets equal to the old values", value(given=replace(given, targets=given.old))
    for places, words in ((1, "of the token before"), (-1, "of the token after")):
        yield f"that of targets {words}", value(given=replace(given, targets=given.targets.roll(places, 1)))
    yield "that of targets of other samples", value(given=replace(given, targets=given.targets.roll(1, 0)))
    yield (
        "that of a mask without the last token of each completion",
        value(given=replace(given, mask=without_last(given.mask))),
    )
    yield "that of the micro-batch alone, not a part of its update", value(given=alone(given))
    yield "that of a mean over samples", _over_samples(settings, given)
    yield from of_other_size(documented, ranks=given.ranks, microbatches=microbatches)


def _smaller(clip: float, given: ValueInputs) -> float:
    clipped = given.old + (given.values - given.old).clamp(-clip, clip)
    terms = torch.minimum((clipped - given.targets).square(), (given.values - given.targets).square())
    return float(aggregated(terms, given, token_level=True)) / 2


def _over_samples(settings: ValueSettings, given: ValueInputs) -> float:
    terms = (given.values - given.targets).square()
    if settings.clip is not None:
        clipped = given.old + (given.values - given.old).clamp(-settings.clip, settings.clip)
        terms = torch.maximum(terms, (clipped - given.targets).square())
    return float(aggregated(terms, given, token_level=False)) / 2
