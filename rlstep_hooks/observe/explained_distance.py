"""Whether a mistake explains numbers that are not what they should be: it must come near them, and not by chance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

EXPLAINED = 0.05
"""The share of a distance that a mistake may leave, where its own rounding is not known."""
BY_CHANCE = 1e-3
"""A mistake is named if one that has nothing to do with the numbers would come as near in at most this share of the cases. Twenty to
thirty are tried."""


def cause_of(observed: Tensor, right: Tensor, mistakes: Iterable[tuple[str, Tensor]], rounding: float) -> str:
    """The words of the mistake that comes nearest to some numbers, among those that explain them; empty where none does.

    A mistake is judged by the places of which it says something: where a whole distance is at one place that a mistake leaves out, it
    explains nothing.

    Args:
        observed: (N,).
        right: (N,), what the numbers should be.
        mistakes: What each mistake would give, (N,), nan where it says nothing, with its words.
        rounding: The mean distance that rounding explains.
    """
    distance = (observed - right).abs()
    found = [(_left(distance, (observed - of).abs(), ~of.isnan(), rounding), words) for words, of in mistakes]
    left, words = min(found, default=(math.inf, ""))
    return words if left < math.inf else ""


def participation(distance: Tensor) -> Tensor:
    """The participation ratio of distances (N,): 1 where one place has all of it, N where all have the same, nan where none has any.

    It says how many numbers a mistake has to meet. One that has nothing to do with them meets a number to within a share s in about s
    of the cases, and n of them in s ** n.
    """
    of = distance.abs().double()
    return of.sum() ** 2 / of.square().sum()


def _left(distance: Tensor, left: Tensor, there: Tensor, rounding: float) -> float:
    """The mean distance that a mistake leaves where it says something; infinite where it does not explain the distance."""
    before, after = distance[there].double(), left[there].double()
    mean, rest = float(before.mean()), float(after.mean())
    if not rounding < mean < math.inf or not rest <= max(min(rounding, mean / 4), EXPLAINED * mean):
        return math.inf
    return rest if (rest / mean) ** float(participation(before)) <= BY_CHANCE else math.inf
