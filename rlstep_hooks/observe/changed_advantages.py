"""What advantages are changed to on their way from the rollout into a loss: known mistakes, each a calculation.

Shapes: N micro-batches, or nothing in that place, as `...`; B samples, T tokens. Advantages are (..., B, T), or (..., B, 1) where a
sample has one; the mask is (..., B, T). Everything waits for the device where it must, so it is asked only of losses that are wrong.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from rlstep_hooks.observe.input_changes import Change, of_others

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from rlstep_hooks.observe.loss_inputs import Input
    from rlstep_hooks.observe.losses import LossBatch

LIMITS = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Sizes at which advantages are cut."""

STABILISERS = (0.0, 1e-6, 1e-5, 1e-4)
"""What is added to a standard deviation before something is divided by it."""

OPPOSITE = "advantages of the opposite sign"


def changes(which: Input) -> Iterator[Change]:
    """All changes of advantages that are known; those with the same words are variants of one mistake."""
    yield Change(which, "advantages whose negative ones are 0", lambda advantages, batch: advantages.clamp(min=0))
    yield Change(which, "advantages whose positive ones are 0", lambda advantages, batch: advantages.clamp(max=0))
    yield Change(which, "advantages without their sign", lambda advantages, batch: advantages.abs())
    yield Change(which, OPPOSITE, lambda advantages, batch: -advantages)
    yield Change(which, "advantages that are all 0", lambda advantages, batch: torch.zeros_like(advantages))
    yield Change(which, "advantages that are all 1", lambda advantages, batch: torch.ones_like(advantages))
    yield Change(which, "the signs of the advantages", lambda advantages, batch: advantages.sign())
    yield Change(which, "advantages that are 1 where they were positive, and else 0", _positive)
    yield Change(which, "advantages cut to [0, 1]", lambda advantages, batch: advantages.clamp(0, 1))
    for limit in LIMITS:
        yield Change(which, f"advantages cut to [-{limit:g}, {limit:g}]", partial(_cut, limit))
    yield from of_others(which)
    for statistics in (_over_samples, _over_tokens):
        yield from _normalised(which, statistics)


def _positive(advantages: Tensor, batch: LossBatch) -> Tensor:
    return (advantages > 0).to(advantages.dtype)


def _cut(limit: float, advantages: Tensor, batch: LossBatch) -> Tensor:
    return advantages.clamp(-limit, limit)


Statistics = tuple["Tensor", "Tensor", "Tensor"]
"""The mean over a micro-batch, the sum of squared distances from it, and the number of what was averaged; each (..., 1, 1)."""


def _over_samples(advantages: Tensor, batch: LossBatch) -> Statistics | None:
    counted = batch.mask.to(advantages.dtype)
    of_each = counted.sum(-1, keepdim=True)
    shares = counted / of_each.clamp(min=1)
    return _weighed(advantages, shares if advantages.shape[-1] > 1 else (of_each > 0).to(advantages.dtype))


def _over_tokens(advantages: Tensor, batch: LossBatch) -> Statistics | None:
    """None where a sample has one advantage: no trainer spreads it before it is normalised there."""
    return _weighed(advantages, batch.mask.to(advantages.dtype)) if advantages.shape[-1] > 1 else None


def _weighed(advantages: Tensor, weights: Tensor) -> Statistics:
    count = weights.sum((-2, -1), keepdim=True)
    mean = (weights * advantages).sum((-2, -1), keepdim=True) / count
    return mean, (weights * (advantages - mean).square()).sum((-2, -1), keepdim=True), count


def _normalised(which: Input, statistics: Callable[[Tensor, LossBatch], Statistics | None]) -> Iterator[Change]:
    """Advantages that are centred, divided, normalised or averaged over a micro-batch."""
    over = f"over the {statistics.__name__.removeprefix('_over_')} of the micro-batch"
    yield Change(which, f"the mean of the advantages {over}", partial(_mean, statistics))
    yield Change(which, f"advantages less their mean {over}", partial(_centred, statistics))
    for centre, words in (
        (True, "advantages normalised again"),
        (False, "advantages divided by their standard deviation"),
    ):
        for biased in (False, True):
            for stabiliser in STABILISERS:
                yield Change(which, f"{words} {over}", partial(_divided, statistics, centre, biased, stabiliser))


def _mean(
    statistics: Callable[[Tensor, LossBatch], Statistics | None], advantages: Tensor, batch: LossBatch
) -> Tensor | None:
    found = statistics(advantages, batch)
    return None if found is None else found[0].expand_as(advantages)


def _centred(
    statistics: Callable[[Tensor, LossBatch], Statistics | None], advantages: Tensor, batch: LossBatch
) -> Tensor | None:
    found = statistics(advantages, batch)
    return None if found is None else advantages - found[0]


def _divided(
    statistics: Callable[[Tensor, LossBatch], Statistics | None],
    centre: bool,
    biased: bool,
    stabiliser: float,
    advantages: Tensor,
    batch: LossBatch,
) -> Tensor | None:
    found = statistics(advantages, batch)
    if found is None:
        return None
    mean, squares, count = found
    deviation = (squares / (count if biased else count - 1)).sqrt()
    return (advantages - mean if centre else advantages) / (deviation + stabiliser)
