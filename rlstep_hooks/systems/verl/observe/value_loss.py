"""The documented loss of verl's critic, evaluated in float64 on what a micro-batch was trained with.

Source: docs/algo/ppo.md of verl, and of 0.9.1 `workers/utils/losses.py` (`value_loss`) and `trainer/ppo/core_algos.py:2125`
(`compute_value_loss`): half of the larger square, of the value and of the value kept within `cliprange_value` of the old one.
Shapes: B samples, T completion tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlstep_hooks.observe.alternative_losses import without_last
from rlstep_hooks.systems.verl.observe.loss import AGGREGATIONS, EDGE, aggregated, aggregated_otherwise

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class ValueSettings:
    """What of a critic's configuration the formula needs."""

    clip: float
    aggregation: str
    scale_factor: float | None
    """Divisor of seq-mean-token-sum-norm; None for the width of the mask."""


@dataclass(frozen=True)
class ValueInputs:
    """What a loss was computed from; all (B, T) in float64, 0 outside the completions. Counts as in `LossInputs`."""

    values: Tensor
    """Of the critic that is trained."""
    old: Tensor
    """Those that advantages and returns were computed with."""
    returns: Tensor
    mask: Tensor
    epsilon: float
    """Distance of 1 to the next number in the dtype in which a term is computed."""
    ranks: int
    tokens: float | None
    samples: float | None


def read_settings(config: Any) -> ValueSettings | str:
    """The loss settings of a live `CriticConfig`, or why its loss has no formula here."""
    aggregation = str(config.loss_agg_mode)
    if aggregation not in AGGREGATIONS:
        return f"no documented formula is known here for critic.loss_agg_mode={aggregation}"
    return ValueSettings(float(config.cliprange_value), aggregation, config.loss_scale_factor)


def documented_loss(settings: ValueSettings, given: ValueInputs) -> tuple[float, float]:
    """The loss by its formula, and what one rounding of each of its terms amounts to."""
    squares = _squares(settings, given)
    # A difference is rounded by the size of what is subtracted, however small it is itself.
    sizes = given.values.abs() + given.returns.abs() + given.old.abs() + settings.clip
    roundings = given.epsilon * (squares + 2 * squares.sqrt() * sizes)
    return 0.5 * float(aggregated(squares, settings, given)), 0.5 * abs(float(aggregated(roundings, settings, given)))


def documented_gradient(settings: ValueSettings, given: ValueInputs) -> tuple[Tensor, Tensor, float]:
    """The gradient of the loss at the values by its formula.

    Returns:
        (B, T); where it is certain, because no value is so near to a limit that rounding decides; one rounding of it.
    """
    with torch.enable_grad():
        values = given.values.clone().requires_grad_()
        followed = replace(given, values=values)
        (gradient,) = torch.autograd.grad(0.5 * aggregated(_squares(settings, followed), settings, given), values)
        ones = torch.ones_like(given.mask).requires_grad_()
        (shares,) = torch.autograd.grad(aggregated(ones, settings, given), ones)
    moved = given.values - given.old
    # Beyond its limit a value counts where that makes the loss larger, which changes where both are equally far from the return.
    middle = (given.values + given.old + settings.clip * moved.sign()) / 2 - given.returns
    certain = (given.mask > 0) & ((moved.abs() - settings.clip).abs() > EDGE) & (middle.abs() > EDGE)
    sizes = given.values.abs() + given.returns.abs() + given.old.abs() + settings.clip
    return gradient, certain, given.epsilon * float((sizes * shares.abs() * given.mask).max())


def _squares(settings: ValueSettings, given: ValueInputs) -> Tensor:
    """(B, T), twice the loss of each token."""
    clipped = torch.minimum(torch.maximum(given.values, given.old - settings.clip), given.old + settings.clip)
    return torch.maximum((given.values - given.returns).square(), (clipped - given.returns).square())


def alternatives(settings: ValueSettings, given: ValueInputs, microbatches: int) -> Iterator[tuple[str, float]]:
    """Losses that the documented one is mistaken for, in words that follow "the loss is".

    Args:
        settings: As documented.
        given: As documented.
        microbatches: Of the update.
    """

    def value(settings: ValueSettings = settings, given: ValueInputs = given) -> float:
        return documented_loss(settings, given)[0]

    documented = value()
    yield "that without a clip of the values", value(replace(settings, clip=float(torch.finfo(torch.float32).max)))
    yield "that of values that are not kept near the old ones, but put there", value(replace(settings, clip=0.0))
    for words, steps in (("after", -1), ("before", 1)):
        yield (
            f"that of the returns of the token {words}",
            value(given=replace(given, returns=given.returns.roll(steps, 1))),
        )
        yield (
            f"that of the returns of the sample {words}",
            value(given=replace(given, returns=given.returns.roll(steps, 0))),
        )
    yield "that of the old values in the place of the returns", value(given=replace(given, returns=given.old))
    yield "that of returns of 0", value(given=replace(given, returns=torch.zeros_like(given.returns)))
    yield "the documented one with its sign flipped", -documented
    yield (
        "that of a mask without the last token of each completion",
        value(given=replace(given, mask=without_last(given.mask))),
    )
    yield from aggregated_otherwise(value, settings, given, microbatches)
