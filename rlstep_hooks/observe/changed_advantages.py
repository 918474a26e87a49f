"""What advantages are changed to on their way from the rollout into a loss: known mistakes, each a calculation.

Shapes: N micro-batches, or nothing in that place, as `...`; B samples, T tokens. Advantages are (..., B, T), or (..., B, 1) where a
sample has one; the mask is (..., B, T). Everything waits for the device where it must, so it is asked only of losses that are wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

LIMITS = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Sizes at which advantages are cut."""

STABILISERS = (0.0, 1e-6, 1e-5, 1e-4)
"""What is added to a standard deviation before something is divided by it."""

MOST_NAMED = 3
"""Changes that a cause names at most, where all of them give the same losses."""

OPPOSITE = "advantages of the opposite sign"


@dataclass(frozen=True)
class Change:
    """A change of advantages.

    Attributes:
        what: What they are then, in words that follow "the loss is that of".
        of: Gives them from the documented ones and the mask; None where there is nothing to change in that way.
    """

    what: str
    of: Callable[[Tensor, Tensor], Tensor | None]


def said(changed: Sequence[str]) -> str:
    """What a loss is that any of these changes explains, in words that follow "the loss is"; empty without one."""
    if len(changed) > MOST_NAMED:
        return "that of other advantages: more than one known change of them gives it"
    return "that of " + ", or of ".join(changed) if changed else ""


def changes() -> Iterator[Change]:
    """All changes that are known; those with the same words are variants of one mistake."""
    yield Change("advantages whose negative ones are 0", lambda advantages, mask: advantages.clamp(min=0))
    yield Change("advantages whose positive ones are 0", lambda advantages, mask: advantages.clamp(max=0))
    yield Change("advantages without their sign", lambda advantages, mask: advantages.abs())
    yield Change(OPPOSITE, lambda advantages, mask: -advantages)
    yield Change("advantages that are all 0", lambda advantages, mask: torch.zeros_like(advantages))
    yield Change("advantages that are all 1", lambda advantages, mask: torch.ones_like(advantages))
    yield Change("the signs of the advantages", lambda advantages, mask: advantages.sign())
    yield Change(
        "advantages that are 1 where they were positive, and else 0", lambda advantages, mask: _positive(advantages)
    )
    yield Change("advantages cut to [0, 1]", lambda advantages, mask: advantages.clamp(0, 1))
    for limit in LIMITS:
        yield Change(f"advantages cut to [-{limit:g}, {limit:g}]", partial(_cut, limit))
    yield from _of_others()
    for statistics in (_over_samples, _over_tokens):
        yield from _normalised(statistics)


def _positive(advantages: Tensor) -> Tensor:
    return (advantages > 0).to(advantages.dtype)


def _cut(limit: float, advantages: Tensor, mask: Tensor) -> Tensor:
    return advantages.clamp(-limit, limit)


def _of_others() -> Iterator[Change]:
    """Each sample or token with what belongs to another."""
    for words, move, fewest in (
        ("the advantages of the sample before", lambda rows: rows.roll(1, -2), 2),
        # Of two samples the other one is before and after: that is one mistake, and not three.
        ("the advantages of the sample after", lambda rows: rows.roll(-1, -2), 3),
        ("the advantages of the samples in the opposite order", lambda rows: rows.flip(-2), 3),
    ):
        yield Change(words, partial(_of_samples, move, fewest))
        yield Change(words, partial(_of_rows, move, fewest))
    for shift, which in ((1, "before"), (-1, "after")):
        yield Change(f"the advantages of the token {which}", partial(_of_tokens, shift))
    yield Change("the mean of the advantages over the tokens of each sample", _mean_of_tokens)


def _of_samples(move: Callable[[Tensor], Tensor], fewest: int, advantages: Tensor, mask: Tensor) -> Tensor | None:
    """The advantages of samples moved as they stand."""
    return move(advantages) if advantages.shape[-2] >= fewest else None


def _of_rows(move: Callable[[Tensor], Tensor], fewest: int, advantages: Tensor, mask: Tensor) -> Tensor | None:
    """The one advantage of each sample moved, for all of its tokens; None where tokens have their own."""
    if advantages.shape[-2] < fewest or advantages.shape[-1] == 1:
        return None
    of_each = _one_of_each(advantages, mask)
    alike = (advantages == of_each) | (mask == 0)
    return move(of_each).expand_as(advantages) if bool(alike.all()) else None


def _one_of_each(advantages: Tensor, mask: Tensor) -> Tensor:
    """(..., B, 1), the advantage of each sample's first token that counts."""
    return advantages.gather(-1, (mask != 0).int().argmax(-1, keepdim=True))


def _of_tokens(shift: int, advantages: Tensor, mask: Tensor) -> Tensor | None:
    return advantages.roll(shift, -1) if advantages.shape[-1] > 1 else None


def _mean_of_tokens(advantages: Tensor, mask: Tensor) -> Tensor | None:
    if advantages.shape[-1] == 1:
        return None
    counted = mask.to(advantages.dtype)
    return ((advantages * counted).sum(-1, keepdim=True) / counted.sum(-1, keepdim=True)).expand_as(advantages)


Statistics = tuple["Tensor", "Tensor", "Tensor"]
"""The mean over a micro-batch, the sum of squared distances from it, and the number of what was averaged; each (..., 1, 1)."""


def _over_samples(advantages: Tensor, mask: Tensor) -> Statistics | None:
    counted = mask.to(advantages.dtype)
    of_each = counted.sum(-1, keepdim=True)
    shares = counted / of_each.clamp(min=1)
    return _weighed(advantages, shares if advantages.shape[-1] > 1 else (of_each > 0).to(advantages.dtype))


def _over_tokens(advantages: Tensor, mask: Tensor) -> Statistics | None:
    """None where a sample has one advantage: no trainer spreads it before it is normalised there."""
    return _weighed(advantages, mask.to(advantages.dtype)) if advantages.shape[-1] > 1 else None


def _weighed(advantages: Tensor, weights: Tensor) -> Statistics:
    count = weights.sum((-2, -1), keepdim=True)
    mean = (weights * advantages).sum((-2, -1), keepdim=True) / count
    return mean, (weights * (advantages - mean).square()).sum((-2, -1), keepdim=True), count


def _normalised(statistics: Callable[[Tensor, Tensor], Statistics | None]) -> Iterator[Change]:
    """Advantages that are centred, divided, normalised or averaged over a micro-batch."""
    over = f"over the {statistics.__name__.removeprefix('_over_')} of the micro-batch"
    yield Change(f"the mean of the advantages {over}", partial(_mean, statistics))
    yield Change(f"advantages less their mean {over}", partial(_centred, statistics))
    for centre, words in (
        (True, "advantages normalised again"),
        (False, "advantages divided by their standard deviation"),
    ):
        for biased in (False, True):
            for stabiliser in STABILISERS:
                yield Change(f"{words} {over}", partial(_divided, statistics, centre, biased, stabiliser))


def _mean(statistics: Callable[[Tensor, Tensor], Statistics | None], advantages: Tensor, mask: Tensor) -> Tensor | None:
    found = statistics(advantages, mask)
    return None if found is None else found[0].expand_as(advantages)


def _centred(
    statistics: Callable[[Tensor, Tensor], Statistics | None], advantages: Tensor, mask: Tensor
) -> Tensor | None:
    found = statistics(advantages, mask)
    return None if found is None else advantages - found[0]


def _divided(
    statistics: Callable[[Tensor, Tensor], Statistics | None],
    centre: bool,
    biased: bool,
    stabiliser: float,
    advantages: Tensor,
    mask: Tensor,
) -> Tensor | None:
    found = statistics(advantages, mask)
    if found is None:
        return None
    mean, squares, count = found
    deviation = (squares / (count if biased else count - 1)).sqrt()
    return (advantages - mean if centre else advantages) / (deviation + stabiliser)
