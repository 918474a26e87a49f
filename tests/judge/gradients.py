"""Ranks that reduce random gradients without torch: what each records of an update, healthy or with one mistake."""

from __future__ import annotations

import math
import random
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlstep_hooks.record.events import GradientParts, TensorParts

if TYPE_CHECKING:
    from collections.abc import Callable

ELEMENTS = (3, 77, 901)
PER_TENSOR = len(ELEMENTS)
Vector = list[float]
"""The followed elements of all tensors in a row."""


def float32(number: float) -> float:
    """A number rounded as float32 is."""
    return float(struct.unpack("f", struct.pack("f", number))[0])


def bfloat16(number: float) -> float:
    """A number rounded to nearest as bfloat16 is."""
    (bits,) = struct.unpack("I", struct.pack("f", number))
    bits += 0x7FFF + (bits >> 16 & 1)
    return float(struct.unpack("f", struct.pack("I", bits & 0xFFFF0000))[0])


ROUND: dict[str, Callable[[float], float]] = {"float32": float32, "bfloat16": bfloat16}


def bits(number: float) -> int:
    """The integer of a float32 number's bits, as a record has it."""
    return int(struct.unpack("i", struct.pack("f", number))[0])


@dataclass
class Run:
    """Updates of W ranks with A backward passes each.

    A fault is a function that changes what one step of it gives: `local` what a rank adds of each pass (after its record of it),
    `combine` what rank r holds of all sums, `use` what its optimizer gets.
    """

    ranks: int = 2
    passes: int = 2
    tensors: int = 4
    sharded: bool = False
    dtype: str = "float32"
    limit: float | None = None
    seed: int = 0
    silent: int | None = None
    """A rank whose samples all have the advantage 0."""
    local: Callable[[int, int, int, float], float] = lambda update, rank, one, number: number
    combine: Callable[[int, int, list[float]], float | None] = lambda update, rank, sums: math.fsum(sums) / len(sums)
    use: Callable[[int, int, float, float], float] = lambda update, rank, number, factor: number * factor
    sums: list[list[Vector]] = field(default_factory=list)
    """Of each update, of each rank, the rounded sums of its passes."""

    def updates(self, count: int) -> list[list[GradientParts]]:
        """The parts of all ranks in each of some updates."""
        draw = random.Random(self.seed)
        return [self._update(number, draw) for number in range(count)]

    def _update(self, update: int, draw: random.Random) -> list[GradientParts]:
        rounded = ROUND[self.dtype]
        every = self.tensors * PER_TENSOR
        scale = [10 ** draw.uniform(-6, 0) for _ in range(every)]
        given = [
            [
                [rounded(draw.gauss(0, rank != self.silent) * scale[of]) for of in range(every)]
                for _ in range(self.passes)
            ]
            for rank in range(self.ranks)
        ]
        sums = []
        for rank in range(self.ranks):
            total = [0.0] * every
            for one in range(self.passes):
                total = [
                    rounded(held + self.local(update, rank, one, number))
                    for held, number in zip(total, given[rank][one], strict=True)
                ]
            sums.append(total)
        self.sums.append(sums)
        reduced = [
            [
                None if found is None else rounded(found)
                for found in (
                    self.combine(update, rank, [sums[one][of] for one in range(self.ranks)]) for of in range(every)
                )
            ]
            for rank in range(self.ranks)
        ]
        owned = [
            [of for of in range(every) if not self.sharded or of % self.ranks == rank] for rank in range(self.ranks)
        ]
        squares = [sum((reduced[rank][of] or 0.0) ** 2 for of in owned[rank]) for rank in range(self.ranks)]
        norm = math.sqrt(sum(squares) if self.sharded else squares[0])
        factor = 1.0 if self.limit is None else min(1.0, self.limit / (norm + 1e-6))
        used = [
            [None if number is None else rounded(self.use(update, rank, number, factor)) for number in reduced[rank]]
            for rank in range(self.ranks)
        ]
        return [
            self._parts(update, rank, given[rank], reduced[rank], used[rank], owned[rank]) for rank in range(self.ranks)
        ]

    def _parts(
        self,
        update: int,
        rank: int,
        given: list[Vector],
        reduced: list[float | None],
        used: list[float | None],
        owned: list[int],
    ) -> GradientParts:
        tensors = []
        for place in range(self.tensors):
            here = [of - place * PER_TENSOR for of in owned if of // PER_TENSOR == place]
            rows = slice(place * PER_TENSOR, (place + 1) * PER_TENSOR)
            held = [reduced[rows][position] for position in here]
            none = any(number is None for number in held)
            tensors.append(
                TensorParts(
                    name=f"layers.{place}.weight",
                    elements=ELEMENTS,
                    dtype=self.dtype,
                    local=tuple(tuple(map(bits, one[rows])) for one in given),
                    owned=tuple(here),
                    reduced=None if none else tuple(bits(number or 0.0) for number in held),
                    used=None if none else tuple(bits(used[rows][position] or 0.0) for position in here),
                    used_dtype=self.dtype,
                )
            )
        return GradientParts(
            update=update,
            tensors=tuple(tensors),
            before_clip=True,
            norm=math.sqrt(sum((used[of] or 0.0) ** 2 for of in owned)),
            limit=self.limit,
            seeds=(1.0,) * self.passes,
        )
