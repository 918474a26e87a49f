"""The parts of all ranks in one update, element by element."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rlstep_hooks.record.events import GradientParts, TensorParts

ROUNDING = {"float64": 2.0**-24, "float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Largest relative error of one rounding (half a unit in the last place). float64 is recorded as float32."""
SMALLEST = {"float16": 2.0**-24}
"""The smallest number above 0 of each dtype in which it is large enough to matter; `TINY` stands for it elsewhere."""
TINY = 2.0**-126
ROUNDED_TWICE = 2
"""Roundings of a reduced gradient besides those of the sum: the division of the sum, and its conversion to what the optimizer
uses."""


@dataclass(frozen=True, slots=True)
class Element:
    """One element of a gradient in one update, as all ranks saw it."""

    parts: tuple[tuple[float, ...], ...]
    """What each backward pass gave, for each rank."""
    reduced: Mapping[int, float]
    """What each rank that holds the element has after the reduction, by rank."""
    used: Mapping[int, float]
    """What the optimizer of each rank uses that holds the element, by rank."""
    without: tuple[int, ...]
    """Ranks that hold the element and have no gradient."""
    sums: tuple[float, ...]
    """The sum of each rank's parts."""
    mean: float
    """The documented gradient: the mean over the ranks of what each rank computed."""
    size: float
    """The mean over the ranks of the sizes of all parts."""
    rounding: float
    """The relative error of one rounding of the coarsest dtype on the way."""
    smallest: float
    """The smallest number above 0 that the dtype of the gradient has."""

    @property
    def roundings(self) -> int:
        """How many roundings the documented combination may take."""
        return ROUNDED_TWICE + sum(map(len, self.parts))

    @property
    def allowed(self) -> float:
        """The largest distance that rounding explains."""
        return self.roundings * (self.rounding * self.size + self.smallest)

    @property
    def finite(self) -> bool:
        """Whether all numbers of the element are finite."""
        return all(map(math.isfinite, (self.mean, self.size, *self.reduced.values(), *self.used.values())))


class Tensor(NamedTuple):
    """The followed elements of one tensor in one update."""

    name: str
    elements: tuple[Element, ...]
    used_rounding: float
    """What `Element.rounding` is, for the dtype of what the optimizer uses."""


class Joined(NamedTuple):
    """One update, as all ranks saw it."""

    tensors: tuple[Tensor, ...]
    missed: tuple[str, ...]
    """Names of tensors that not all ranks recorded alike."""
    owners: int
    """How many ranks hold each element: 1 where parameters are sharded, and all where they are whole; 0 where that differs."""


def joined(parts: Sequence[GradientParts]) -> Joined:
    """The parts of all ranks, in the order of the ranks."""
    by_name: list[dict[str, TensorParts]] = [{of.name: of for of in rank.tensors} for rank in parts]
    names = dict.fromkeys(name for rank in by_name for name in rank)
    reduced_in = tuple(dict.fromkeys(rank.reduced_in for rank in parts))
    tensors, missed = [], []
    for name in names:
        of_ranks = [rank[name] for rank in by_name if name in rank]
        if len(of_ranks) < len(parts) or not _alike(of_ranks):
            missed.append(name)
            continue
        tensors.append(_tensor(name, of_ranks, reduced_in))
    owners = {len(of.reduced) + len(of.without) for tensor in tensors for of in tensor.elements}
    return Joined(tuple(tensors), tuple(missed), owners.pop() if len(owners) == 1 else 0)


def _alike(of_ranks: Sequence[TensorParts]) -> bool:
    """Whether all ranks read the same elements, and each part has a number for each of them."""
    elements = of_ranks[0].elements
    return all(
        of.elements == elements
        and all(len(part) == len(elements) for part in of.local)
        and all(0 <= position < len(elements) for position in of.owned)
        and all(read is None or len(read) == len(of.owned) for read in (of.reduced, of.used))
        for of in of_ranks
    )


def _tensor(name: str, of_ranks: Sequence[TensorParts], reduced_in: Sequence[str]) -> Tensor:
    dtypes = [*(of.dtype for of in of_ranks), *(of.used_dtype for of in of_ranks), *reduced_in]
    rounding, used_rounding = _coarsest(dtypes), _coarsest(of.used_dtype for of in of_ranks)
    smallest = max(SMALLEST.get(dtype, TINY) for dtype in dtypes)
    passes = [[numbers_of(part) for part in of.local] for of in of_ranks]
    reduced = [_by_position(of, of.reduced) for of in of_ranks]
    used = [_by_position(of, of.used) for of in of_ranks]
    elements = []
    for position in range(len(of_ranks[0].elements)):
        parts = tuple(tuple(part[position] for part in rank) for rank in passes)
        sums = tuple(map(math.fsum, parts)) if _finite(parts) else tuple(map(sum, parts))
        elements.append(
            Element(
                parts=parts,
                reduced={rank: of[position] for rank, of in enumerate(reduced) if position in of},
                used={rank: of[position] for rank, of in enumerate(used) if position in of},
                without=tuple(
                    rank for rank, of in enumerate(of_ranks) if position in of.owned and position not in reduced[rank]
                ),
                sums=sums,
                mean=sum(sums) / len(of_ranks),
                size=sum(abs(part) for rank in parts for part in rank) / len(of_ranks),
                rounding=rounding,
                smallest=smallest,
            )
        )
    return Tensor(name, tuple(elements), used_rounding)


def _finite(parts: Iterable[Iterable[float]]) -> bool:
    return all(math.isfinite(part) for rank in parts for part in rank)


def _coarsest(dtypes: Iterable[str]) -> float:
    return max((ROUNDING.get(dtype, 0.0) for dtype in dtypes), default=0.0) or ROUNDING["float32"]


def _by_position(of: TensorParts, read: tuple[int, ...] | None) -> dict[int, float]:
    return {} if read is None else dict(zip(of.owned, numbers_of(read), strict=True))


def numbers_of(bits: Sequence[int]) -> list[float]:
    """float32 numbers from the integers of their bits.

    Raises:
        OverflowError: One is no 32-bit integer.
    """
    return list(array("f", array("i", bits).tobytes()))
