"""The documented loss of verl's critic.

Source: docs/algo/ppo.md of verl, and of 0.9.1 `workers/utils/losses.py` (`value_loss`) and `trainer/ppo/core_algos.py:2125`
(`compute_value_loss`): half of the larger square, of the value and of the value kept within `cliprange_value` of the old one.
Shapes: B samples, T completion tokens. Tensors of a batch: values (of the critic that is trained), old (those that advantages and
returns were computed with), returns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlstep_hooks.observe.losses import AGGREGATIONS, EDGE, Aggregation, Formula, LossBatch, Term, near

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class ValueSettings:
    """The part of a critic's configuration that the formula needs."""

    clip: float
    aggregation: Aggregation
    scale_factor: float | None
    """Divisor of seq-mean-token-sum-norm; None for the width of the mask."""


def read_settings(config: Any) -> ValueSettings | str:
    """The loss settings of a live `CriticConfig`, or why its loss has no formula here."""
    aggregation = next((known for known in AGGREGATIONS if known == config.loss_agg_mode), None)
    if aggregation is None:
        return f"no documented formula is known here for critic.loss_agg_mode={config.loss_agg_mode}"
    return ValueSettings(float(config.cliprange_value), aggregation, config.loss_scale_factor)


def value_formula(settings: ValueSettings) -> Formula[ValueSettings]:
    """The critic's loss with these settings."""
    return Formula(settings, "values", _terms, _edges, _sizes, _mistakes)


def _terms(settings: ValueSettings, batch: LossBatch) -> Iterator[Term]:
    values, old, returns = (batch.tensors[name] for name in ("values", "old", "returns"))
    clipped = torch.minimum(torch.maximum(values, old - settings.clip), old + settings.clip)
    squares = torch.maximum((values - returns).square(), (clipped - returns).square())
    # A difference is rounded by the size of what is subtracted, however small it is itself.
    sizes = squares + squares.sqrt() * _sizes(settings, batch)
    yield Term(squares, settings.aggregation, 0.5, sizes, scale=settings.scale_factor)


def _edges(settings: ValueSettings, batch: LossBatch) -> Tensor:
    values, old, returns = (batch.tensors[name] for name in ("values", "old", "returns"))
    moved = values - old
    # Beyond its limit a value counts where that makes the loss larger, which changes where both are equally far from the return.
    middle = (values + old + settings.clip * moved.sign()) / 2 - returns
    within = EDGE + batch.epsilons.get("policy", 0.0) * _sizes(settings, batch)
    return near(moved.abs(), settings.clip, within=within) | near(middle, 0.0, within=within)


def _sizes(settings: ValueSettings, batch: LossBatch) -> Tensor:
    # The derivative of a square is twice what is squared.
    return (
        2 * torch.stack([batch.tensors[name].abs() for name in ("values", "old", "returns")]).sum(0) + 2 * settings.clip
    )


def _mistakes(settings: ValueSettings, batch: LossBatch) -> Iterator[tuple[str, ValueSettings, LossBatch]]:
    yield "that without a clip of the values", replace(settings, clip=float(torch.finfo(torch.float32).max)), batch
    yield "that of values that are not kept near the old ones, but put there", replace(settings, clip=0.0), batch
    for mode in AGGREGATIONS:
        yield f"that of loss_agg_mode={mode}", replace(settings, aggregation=mode), batch
