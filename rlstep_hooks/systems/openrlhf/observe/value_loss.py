"""OpenRLHF's documented loss of the critic. B samples, T completion tokens.

Source: OpenRLHF 0.11.2, models/loss.py:275 (`ValueLoss`) and `aggregate_loss`, trainer/ray/ppo_critic.py:121 `training_step`;
arxiv.org/abs/1707.06347, and 2005.12729 for the clip of values. Tensors of a batch: values, old, targets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlstep_hooks.observe.losses import Aggregation, Formula, LossBatch, Term, near
from rlstep_hooks.systems.openrlhf.observe.loss import EDGE_OF_CLIP

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class ValueSettings:
    """The arguments that the formula needs, and what sets known mistakes apart from it."""

    clip: float | None
    """How far a value may move from its old one; None without a clip."""
    aggregation: Aggregation = "token-mean"
    """OpenRLHF has no other."""
    smaller: bool = False
    """Whether the smaller of the clipped and the plain error is taken, which is a known mistake."""


def read_value_settings(args: Any) -> ValueSettings:
    """The settings of a run's arguments."""
    clip = args.critic.value_clip
    return ValueSettings(None if clip is None else float(clip))


def value_formula(settings: ValueSettings) -> Formula[ValueSettings]:
    """The critic's loss with these settings."""
    return Formula(settings, "values", _terms, _edges, _sizes, _mistakes)


def _terms(settings: ValueSettings, batch: LossBatch) -> Iterator[Term]:
    values, old, targets = (batch.tensors[name] for name in ("values", "old", "targets"))
    squares = sizes = (values - targets).square()
    if settings.clip is not None:
        moved = (values - old).clamp(-settings.clip, settings.clip)
        distance = (old + moved - targets).abs()
        chosen = torch.minimum if settings.smaller else torch.maximum
        squares = chosen(squares, distance.square())
        # The sum of the old value and what it moved is rounded before it is compared with the target.
        sizes = torch.maximum(sizes, distance.square() + distance * ((old + moved).abs() + (values - old).abs()))
    yield Term(squares, settings.aggregation, 0.5, sizes)


def _edges(settings: ValueSettings, batch: LossBatch) -> Tensor:
    if settings.clip is None:
        return torch.zeros_like(batch.mask, dtype=torch.bool)
    values, old, targets = (batch.tensors[name] for name in ("values", "old", "targets"))
    moved = values - old
    clipped = old + moved.clamp(-settings.clip, settings.clip)
    plain, bounded = (values - targets).square(), (clipped - targets).square()
    rounding = max(EDGE_OF_CLIP, batch.epsilons.get("policy", 0.0))
    # A difference is rounded by the size of what is subtracted, and a square has twice that.
    of_move = rounding * (settings.clip + values.abs() + old.abs())
    of_squares = rounding * (plain + bounded + 2 * (plain.sqrt() + bounded.sqrt()) * (values.abs() + targets.abs()))
    at_limit = near(moved.abs(), settings.clip, within=of_move)
    return at_limit | ((moved.abs() > settings.clip) & near(plain - bounded, 0.0, within=of_squares))


def _sizes(settings: ValueSettings, batch: LossBatch) -> Tensor:
    # The derivative of a square is twice what is squared.
    return 2 * (batch.tensors["values"].abs() + batch.tensors["targets"].abs())


def _mistakes(settings: ValueSettings, batch: LossBatch) -> Iterator[tuple[str, ValueSettings, LossBatch]]:
    yield "that without the clip of values", replace(settings, clip=None), batch
    if settings.clip is None:
        yield "that with a clip of values at 0.2", replace(settings, clip=0.2), batch
    else:
        smaller = replace(settings, smaller=True)
        yield "the smaller of the clipped and the plain error, not the larger", smaller, batch
    yield "that of a mean over samples", replace(settings, aggregation="seq-mean-token-mean"), batch
