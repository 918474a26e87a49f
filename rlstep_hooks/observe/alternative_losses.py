"""Losses that a documented one is mistaken for, whatever its formula is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

LARGEST_FACTOR = 64
"""The largest whole number that is tried as the factor of a loss."""


def is_of_other_size(like: str) -> bool:
    """Whether a loss is called the documented one but for a factor, as `of_other_size` names it."""
    return like.startswith(("the documented one divided by ", "the documented one multiplied by "))


def of_other_size(documented: float, *, ranks: int, microbatches: int) -> Iterator[tuple[str, float]]:
    """The loss multiplied or divided by something, in words that follow "the loss is".

    Args:
        documented: The documented loss.
        ranks: Processes of the update. The loss is multiplied by their number, because gradients are averaged over them.
        microbatches: The number of micro-batches of the update.
    """
    if ranks > 1:
        yield f"not multiplied by the {ranks} ranks", documented / ranks
    if microbatches > 1:
        yield f"the documented one divided by the {microbatches} micro-batches of its update", documented / microbatches
    for number in range(2, LARGEST_FACTOR + 1):
        yield f"the documented one divided by {number}", documented / number
        yield f"the documented one multiplied by {number}", documented * number


def without_last(mask: Tensor) -> Tensor:
    """A mask (B, T) without the last token that each sample counts."""
    return mask * (mask.cumsum(-1) < mask.sum(-1, keepdim=True))
