"""What the inputs of a loss are changed to on their way into it: known mistakes, each a calculation.

Those of advantages stand in `changed_advantages`. What a framework's own alternatives say already (old log-probs equal to the current
ones, no KL term, no importance weights, no clip of values) is not here.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import torch

from rlstep_hooks.observe import changed_advantages
from rlstep_hooks.observe.input_changes import Change, Family, of_others
from rlstep_hooks.observe.loss_inputs import (
    ENGINE,
    OLD,
    OLD_BEHIND_RATIOS,
    OLD_OF_A_CRITIC,
    OLD_VALUES,
    REFERENCE,
    RETURNS,
    TARGETS,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor

    from rlstep_hooks.observe.loss_inputs import Input
    from rlstep_hooks.observe.losses import LossBatch

LOG_PROB_BOUNDS = (-0.5, -1.0, -2.0, -3.0, -5.0, -10.0, -20.0)
"""Where log-probs are cut."""

WEIGHT_BOUNDS = (0.5, 0.8, 1.0, 1.2, 2.0, 3.0, 5.0, 10.0)
"""Where importance weights are cut."""

VALUE_BOUNDS = (0.0, 0.2, 0.5, 1.0, 5.0, 10.0)
"""Sizes at which returns and values are cut."""

FACTORS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.5, 2.0, 1 / math.log(2), 1 / math.log(10))
"""Temperatures, one over them, and what makes logarithms of another base."""

_OTHERS = {OLD: (REFERENCE, ENGINE), OLD_BEHIND_RATIOS: (REFERENCE,), REFERENCE: (OLD, OLD_BEHIND_RATIOS, ENGINE),
           ENGINE: (REFERENCE,), RETURNS: (OLD_VALUES, OLD_OF_A_CRITIC), TARGETS: (OLD_VALUES, OLD_OF_A_CRITIC),
           OLD_VALUES: (RETURNS, TARGETS), OLD_OF_A_CRITIC: (RETURNS, TARGETS)}  # fmt: skip
"""Which inputs stand in the place of one by mistake."""


def changes(inputs: Iterable[Input]) -> list[Change]:
    """All changes of these inputs that are known; those with the same words are variants of one mistake."""
    found: list[Change] = []
    for each in inputs:
        found += _OF_KINDS[each.kind](each)
    return found


def _of_advantages(which: Input) -> Iterator[Change]:
    yield from changed_advantages.changes(which)


def _of_log_probs(which: Input) -> Iterator[Change]:
    noun = which.noun
    yield from _of_signed(which)
    yield Change(which, f"probabilities in the place of {noun}", lambda given, batch: given.exp())
    for bound in LOG_PROB_BOUNDS:
        yield from (family.member(bound) for family in _cuts(which))
    for factor in FACTORS:
        yield _multiplied(which).member(factor)


def _of_weights(which: Input) -> Iterator[Change]:
    yield Change(which, f"the inverse of each of the {which.noun}", lambda given, batch: given.reciprocal())
    yield Change(which, f"the squares of the {which.noun}", lambda given, batch: given.square())
    yield Change(which, f"the logarithms of the {which.noun}", lambda given, batch: given.log())
    yield Change(which, f"the mean of the {which.noun} over the tokens of the micro-batch", _mean)
    yield Change(which, f"{which.noun} divided by their mean over the micro-batch", _divided_by_mean)
    yield from of_others(which)
    for bound in WEIGHT_BOUNDS:
        yield from (family.member(bound) for family in _cuts(which))


def _of_values(which: Input) -> Iterator[Change]:
    yield from _of_signed(which)
    for bound in VALUE_BOUNDS:
        yield from (family.member(bound) for family in _cuts(which))
        if bound:
            yield Change(which, f"{which.noun} cut to [-{bound:g}, {bound:g}]", partial(_cut_to, bound))
    for factor in (0.5, 2.0):
        yield _multiplied(which).member(factor)


def _of_signed(which: Input) -> Iterator[Change]:
    yield Change(which, f"{which.noun} that are all 0", lambda given, batch: torch.zeros_like(given))
    yield Change(which, f"{which.noun} of the opposite sign", lambda given, batch: -given)
    yield from of_others(which)
    for other in _OTHERS.get(which, ()):
        yield Change(which, f"the {other.noun} in the place of the {which.noun}", partial(_of_other, other))


_OF_KINDS = {"advantages": _of_advantages, "log-probs": _of_log_probs, "weights": _of_weights, "values": _of_values}


def _of_other(other: Input, given: Tensor, batch: LossBatch) -> Tensor | None:
    found = other.read(batch)
    return found.expand_as(given) if found is not None and found.dim() == given.dim() else None


def _cut_to(bound: float, given: Tensor, batch: LossBatch) -> Tensor:
    return given.clamp(-bound, bound)


def _mean(given: Tensor, batch: LossBatch) -> Tensor:
    return _mean_of(given, batch).expand_as(given)


def _divided_by_mean(given: Tensor, batch: LossBatch) -> Tensor:
    return given / _mean_of(given, batch)


def _mean_of(given: Tensor, batch: LossBatch) -> Tensor:
    """(..., 1, 1), the mean over what counts in a micro-batch."""
    counted = batch.mask.to(given.dtype)
    if given.shape[-1] == 1:
        counted = counted.amax(-1, keepdim=True)
    return (given * counted).sum((-2, -1), keepdim=True) / counted.sum((-2, -1), keepdim=True)


# Changes that differ in a number.

STEPS = 24
"""Parts into which what an input may be cut at is divided, to look for the bound in each."""


def families(inputs: Iterable[Input]) -> Iterator[Family]:
    """Changes of these inputs whose number is looked for. A factor of advantages or of importance weights is that of the term."""
    for each in inputs:
        if each.kind == "advantages":
            continue
        yield from _cuts(each)
        if each.kind != "weights":
            yield _multiplied(each)
            yield _shifted(each)
        if each in (OLD, OLD_BEHIND_RATIOS):
            yield _mixed(each)


def _cuts(which: Input) -> Iterator[Family]:
    for side, cut in (("below", _cut_from_below), ("above", _cut_from_above)):
        yield Family(which, f"{which.noun} cut from {side} at {{}}".format, cut, _quantiles)


def _multiplied(which: Input) -> Family:
    numbers = [2.0 ** (place / 2) for place in range(-8, 9)]
    return Family(which, f"{which.noun} {{}} times as large".format, _times, lambda given: numbers)


def _shifted(which: Input) -> Family:
    sizes = [10.0 ** (place / 2) for place in range(-6, 4)]
    numbers = [*(-size for size in reversed(sizes)), 0.0, *sizes]
    return Family(which, f"{which.noun} with {{}} added to each".format, _plus, lambda given: numbers)


def _mixed(which: Input) -> Family:
    numbers = [place / 8 for place in range(9)]
    words = f"{which.noun} mixed with the current ones, {{}} of them".format
    return Family(which, words, _mixed_with_current, lambda given: numbers)


def _quantiles(given: Tensor) -> Sequence[float]:
    """Bounds between what is given, and beyond it, where all is cut."""
    ordered = given.flatten().sort().values
    places = torch.linspace(0, len(ordered) - 1, min(STEPS, len(ordered)), device=given.device).long()
    found: list[float] = ordered[places].unique().tolist()
    width = found[-1] - found[0]
    return [found[0] - width, *found, found[-1] + width]


def _cut_from_below(bound: float, given: Tensor, batch: LossBatch) -> Tensor:
    return given.clamp(min=bound)


def _cut_from_above(bound: float, given: Tensor, batch: LossBatch) -> Tensor:
    return given.clamp(max=bound)


def _times(factor: float, given: Tensor, batch: LossBatch) -> Tensor:
    return given * factor


def _plus(number: float, given: Tensor, batch: LossBatch) -> Tensor:
    return given + number


def _mixed_with_current(share: float, given: Tensor, batch: LossBatch) -> Tensor | None:
    current = batch.tensors["log_probs"]
    return torch.lerp(given.double(), current.double(), share) if given.shape == current.shape else None
