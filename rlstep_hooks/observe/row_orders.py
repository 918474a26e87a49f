"""The orders in which passes over a data set may give its rows, drawn again by the seed, and whether rollouts follow one of them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LARGEST = 200_000
"""Rows of the largest set whose order is looked at."""
PROMPTS = 64
"""Prompts of a pass that are looked at: each is read from the data set once more."""
TOLERATED = 4
"""Orders that may be the next one: somebody may have looked at the loader's first batches before training, or between two passes, and
a loader with worker processes draws two for each pass (torchdata 0.11, stateful_dataloader.py)."""
AS_IT_STANDS = "that of the data set"


class Orders:
    """The orders of the passes over a set: permutations that are drawn one after the other, or the rows as they stand.

    Args:
        size: The rows of the set.
        seed: Of the permutations; None where the rows are not shuffled.
    """

    def __init__(self, size: int, seed: int | None) -> None:
        import torch

        self.size = size
        self._seed = seed
        self._drawn = 0
        self._held: dict[int, Sequence[int]] = {}
        self._generator = torch.Generator()
        if seed is not None:
            self._generator.manual_seed(seed)

    def of(self, number: int) -> Sequence[int]:
        """The order of a pass that is not forgotten."""
        import torch

        if self._seed is None:
            return range(self.size)
        while self._drawn <= number:
            self._held[self._drawn] = torch.randperm(self.size, generator=self._generator).tolist()
            self._drawn += 1
        return self._held[number]

    def again(self, number: int) -> Sequence[int]:
        """The order of a pass that may be forgotten."""
        return Orders(self.size, self._seed).of(number)

    def forget(self, number: int) -> None:
        """The orders before this one are not needed any more."""
        if self._seed is not None:
            self.of(number)
        self._held = {of: order for of, order in self._held.items() if of >= number}


def follows(
    given: Sequence[Sequence[object]], places: Sequence[int], length: int, order: Sequence[int], held: Sequence[object]
) -> bool:
    """Whether each chunk of a pass stands in an order, none before an earlier one.

    Chunks that come again or are left out are the business of other rules.

    Args:
        given: The rows of the chunks, at the places that are looked at.
        places: Where, among the rows of a chunk, each of them stands.
        length: The rows of a chunk.
        order: Numbers of the rows.
        held: The rows of the set, in the form of those that were given.
    """
    chunk = 0
    for rows in given:
        while [held[order[chunk + at]] for at in places if chunk + at < len(order)] != list(rows):
            chunk += length
            if chunk >= len(order):
                return False
    return True


def chance_of(order: Sequence[int], held: Sequence[object], seen: int) -> float:
    """How probable it is that a permutation begins with the rows of an order; rows that are equal are not told apart.

    Args:
        order: Numbers of the rows.
        held: The rows of the set.
        seen: The rows that were looked at, from the first.
    """
    left = Counter(held)
    chance = 1.0
    for place, row in enumerate(order[:seen]):
        chance *= left[held[row]] / (len(held) - place)
        left[held[row]] -= 1
    return chance
