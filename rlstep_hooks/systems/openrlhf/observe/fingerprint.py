"""A number for the weights of a model, the same in the trainer that sent them and in the engine that holds them.

OpenRLHF gives a sync no name. vLLM fuses, pads and reorders the tensors that it receives, so the number is made of sums over the bits
of all weights: they do not depend on the layout, and padding with zeros adds nothing. If an engine does not load weights that it
received, or a sync leaves out a tensor, the number differs.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

CHUNK = 1 << 22
"""Pieces of 16 bits that are summed at a time, so that a few megabytes are enough besides the weights."""

Sums = tuple[int, int]
"""The sum of the pieces of 16 bits, and the sum of their squares."""


class WeightSums:
    """Adds up tensors on their device. The sums are fetched when they are asked for, when both sides of a sync wait for the device
    anyway."""

    def __init__(self) -> None:
        self._parts: list[Any] = []
        self._tensors: list[int] = []
        """How many parts each tensor has."""

    def add(self, tensor: Any) -> None:
        """Look at one tensor, as it is now."""
        import torch

        before = len(self._parts)
        pieces = tensor.detach().contiguous().reshape(-1).view(torch.int16 if tensor.element_size() > 1 else torch.int8)
        for chunk in pieces.split(CHUNK):
            wide = chunk.to(torch.int32)
            self._parts.append(torch.stack([wide.sum(dtype=torch.int64), (wide * wide).sum(dtype=torch.int64)]))
        self._tensors.append(len(self._parts) - before)

    def take(self) -> list[Sums]:
        """The sums of each tensor since the last call."""
        import torch

        parts, self._parts = self._parts, []
        tensors, self._tensors = self._tensors, []
        rows = iter(torch.stack(parts).cpu().tolist() if parts else [])
        return [total([(first, second) for first, second in (next(rows) for _ in range(count))]) for count in tensors]


def sums_of(tensors: Iterable[Any]) -> list[Sums]:
    """The sums of each of these tensors."""
    sums = WeightSums()
    for tensor in tensors:
        sums.add(tensor)
    return sums.take()


def total(sums: Iterable[Sums]) -> Sums:
    """The sums of tensors together."""
    first = second = 0
    for one, other in sums:
        first, second = first + one, second + other
    return first, second


def label_of(sums: Sums) -> int:
    """The number of weights with these sums."""
    # 0 is the label of the weights that an engine loads by itself.
    return zlib.crc32(b"%d,%d" % sums) or 1
