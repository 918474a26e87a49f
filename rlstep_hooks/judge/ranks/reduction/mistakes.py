"""Known ways to combine gradients otherwise than documented, each as the formula that it amounts to."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rlstep_hooks.judge.ranks.reduction.parts import Element

MOST_PARTS = 1024
"""Parts of one element above which single ones are not tried, each left out by itself."""
MOST_WEIGHTS = 16
"""Ranks for which weights are fitted."""

LEFT_OVER = "left over"
"""Variant of the mistake that RLS803 sees too."""


class Before(NamedTuple):
    """An element in the update before, where that was followed too."""

    sums: tuple[float, ...]
    """The sum of each rank's parts."""
    used: dict[int, float]
    """What the optimizer of each rank used that holds the element, by rank."""
    size: float


class Seen(NamedTuple):
    """One element as one rank holds it after the reduction."""

    element: Element
    rank: int
    got: float
    before: Before | None


class Mistake(NamedTuple):
    """A formula that would give another gradient than the documented one."""

    observed: str
    """What happens with the mistake, in words that a finding shows as the observed value."""
    value: Callable[[Seen], float | None]
    """Computes the gradient that the mistake gives; None where it cannot be known."""
    rank: int | None = None
    """The rank at fault, where a single one is."""
    variant: str = ""
    """The name of the fault, which is equal for mistakes that are one fault."""
    grows: float = 1.0
    """How many times larger the roundings of the mistaken gradient are than those of the mean."""
    why: str = ""
    fix: str = ""
    earlier: bool = False
    """Whether the mistake takes something from the update before, so that the roundings of that update count too."""
    proportional: bool = False
    """Whether the mistake gives the mean times a factor, which cannot be told where another factor is not known."""


_SYNC = "look for a no_sync, or a switch of gradient synchronisation, that is left on"
_BOUNDARY = "look at what decides which micro-batch is the last of its update, and at what clears or overwrites gradients before it"
_FACTOR = "look at who divides by the number of ranks: a communication hook, a divide factor, a loss that is multiplied"
_ONE_RANK = "look at what this rank alone does between backward and step, and at its data"
_CLEARING = "look for gradients that are not cleared between updates, and for buffers that are reduced again"


def known_mistakes(ranks: int, passes: int) -> Iterator[Mistake]:
    """Mistakes with `ranks` ranks and `passes` backward passes of each, the most specific first.

    Args:
        ranks: The number of ranks, at least 2.
        passes: The largest number of passes of a rank.
    """
    yield Mistake("zeros", lambda of: 0.0, variant="zeros", why="the step uses a gradient of 0", fix=_BOUNDARY)
    yield Mistake(
        "each rank's own gradient: nothing of another rank",
        lambda of: of.element.sums[of.rank],
        variant="own",
        grows=ranks,
        why="ranks train apart from each other, each on its own samples",
        fix=_SYNC,
    )
    yield Mistake(
        f"the sum over the ranks: {ranks} times the mean",
        lambda of: ranks * of.element.mean,
        variant="sum",
        grows=ranks,
        why="the gradient is as many times too large as there are ranks",
        fix=_FACTOR,
        proportional=True,
    )
    yield Mistake(
        f"the mean, divided once more by the {ranks} ranks",
        lambda of: of.element.mean / ranks,
        variant="twice",
        why="the gradient is reduced twice, or divided twice",
        fix=_FACTOR,
        proportional=True,
    )
    yield from _of_ranks(ranks)
    yield Mistake(
        "each rank's own gradient, divided by the number of ranks",
        lambda of: of.element.sums[of.rank] / ranks,
        variant="own",
        why="ranks train apart from each other, each on its own samples",
        fix=_SYNC,
    )
    if passes > 1:
        yield from _of_passes(ranks, passes)
    yield from _of_earlier(ranks)


def _of_ranks(ranks: int) -> Iterator[Mistake]:
    for rank in range(ranks):
        yield Mistake(
            f"the gradient of rank {rank} is missing",
            partial(_without_rank, rank, ranks, ranks),
            rank,
            f"missing {rank}",
            why="what this rank sampled teaches nothing",
            fix=_ONE_RANK,
        )
        if ranks > 2:
            yield Mistake(
                f"the gradient of rank {rank} is missing, and the mean is that of the others",
                partial(_without_rank, rank, ranks, ranks - 1),
                rank,
                f"missing {rank}",
                grows=ranks / (ranks - 1),
                why="what this rank sampled teaches nothing",
                fix=_ONE_RANK,
            )


def _without_rank(rank: int, ranks: int, divisor: int, of: Seen) -> float:
    return (ranks * of.element.mean - of.element.sums[rank]) / divisor


def _of_passes(ranks: int, passes: int) -> Iterator[Mistake]:
    for chosen in ((passes - 1,), (0,), (0, passes - 1)) if passes > 2 else ():
        names = ["the last" if one == passes - 1 else "the first" for one in chosen]
        yield Mistake(
            f"the gradients of {' and '.join(names)} of {passes} micro-batches alone",
            partial(_of_chosen, chosen),
            variant=f"kept {chosen}",
            why="the samples of the other micro-batches teach nothing",
            fix=_BOUNDARY,
        )
    for one in range(passes):
        yield Mistake(
            f"the gradients of micro-batch {one} of {passes} are missing, of all ranks",
            partial(_without_pass, one),
            variant=f"dropped {one}",
            why="the samples of this micro-batch teach nothing",
            fix=_BOUNDARY,
        )
        yield Mistake(
            f"the gradient of micro-batch {one} of {passes} is each rank's own",
            partial(_with_own_pass, one),
            variant=f"unsynced {one}",
            grows=ranks,
            why="ranks part from each other by the gradient of this micro-batch",
            fix=_SYNC,
        )
    if ranks * passes <= MOST_PARTS:
        for rank in range(ranks):
            for one in range(passes):
                yield Mistake(
                    f"the gradient of micro-batch {one} of {passes} of rank {rank} is missing",
                    partial(_without_part, rank, one),
                    rank,
                    f"dropped {one} of {rank}",
                    why="the samples of this micro-batch teach nothing",
                    fix=_BOUNDARY,
                )


def _of_chosen(chosen: tuple[int, ...], of: Seen) -> float:
    """The mean over the ranks of some passes alone."""
    ranks = len(of.element.parts)
    return sum(_part(of.element, rank, one) for rank in range(ranks) for one in chosen) / ranks


def _without_pass(one: int, of: Seen) -> float:
    return of.element.mean - _of_chosen((one,), of)


def _with_own_pass(one: int, of: Seen) -> float:
    return _without_pass(one, of) + _part(of.element, of.rank, one)


def _without_part(rank: int, one: int, of: Seen) -> float:
    return of.element.mean - _part(of.element, rank, one) / len(of.element.parts)


def _of_earlier(ranks: int) -> Iterator[Mistake]:
    for rank in range(ranks):
        yield Mistake(
            f"the gradient of rank {rank} is the one that it had in the update before",
            partial(_stale_rank, rank),
            rank,
            f"stale {rank}",
            grows=2.0,
            why="this rank's samples are those of an update that was made already",
            fix=_CLEARING,
            earlier=True,
        )
    yield Mistake(
        "the gradient of the update before",
        lambda of: None if of.before is None else sum(of.before.sums) / ranks,
        variant="stale",
        grows=2.0,
        why="the samples of this update teach nothing, and those of the one before twice",
        fix=_CLEARING,
        earlier=True,
    )
    yield Mistake(
        "the gradient that the update before used",
        lambda of: None if of.before is None else of.before.used.get(of.rank),
        variant="stale",
        grows=2.0,
        why="the samples of this update teach nothing, and those of the one before twice",
        fix=_CLEARING,
        earlier=True,
    )
    yield Mistake(
        "the gradient that the update before used, with this update's added to it",
        _left_over,
        variant=LEFT_OVER,
        grows=2.0,
        why="gradients are not cleared between updates",
        fix=_CLEARING,
        earlier=True,
    )


def _stale_rank(rank: int, of: Seen) -> float | None:
    if of.before is None:
        return None
    return of.element.mean + (of.before.sums[rank] - of.element.sums[rank]) / len(of.element.parts)


def _left_over(of: Seen) -> float | None:
    used = None if of.before is None else of.before.used.get(of.rank)
    return None if used is None else of.element.mean + used


def _part(element: Element, rank: int, one: int) -> float:
    """What one backward pass of a rank gave; 0 where it gave nothing."""
    parts = element.parts[rank]
    return parts[one] if one < len(parts) else 0.0


def fitted(seen: Sequence[Seen], ranks: int) -> Mistake | None:
    """The mistake of weights, one for each rank's gradient, that are fitted to what was seen; None where they cannot be told."""
    weights = _weights(seen, ranks)
    if weights is None:
        return None
    rounded = [float(f"{weight:.3g}") for weight in weights]
    others = [rank for rank, weight in enumerate(rounded) if abs(weight - 1.0) > 1e-3]
    if len(set(rounded)) == 1:
        observed, variant, rank = f"{rounded[0]:g} times the mean", "scaled", None
    elif len(others) == 1:
        rank = others[0]
        observed, variant = f"the gradient of rank {rank} counts {rounded[rank]:g} times", f"weighted {rank}"
    else:
        rank = None
        listed = ", ".join(f"{weight:g}" for weight in rounded)
        observed, variant = f"the ranks' gradients with the weights {listed} in place of 1", "weighted"
    return Mistake(
        observed,
        lambda of: sum(weight * part for weight, part in zip(weights, of.element.sums, strict=True)) / ranks,
        rank,
        variant,
        grows=max(1.0, *map(abs, weights)),
        why="samples count by the rank that they are on",
        fix="look for a loss, or gradients, that each rank divides by a number of its own, such as its own tokens",
    )


def _weights(seen: Sequence[Seen], ranks: int) -> list[float] | None:
    """Least squares of `got = sum of weight * part / ranks`, each row in units of its rounding, by the normal equations. A rank that
    gave nothing but zeros could have any weight, and has 1."""
    gave = [rank for rank in range(ranks) if any(of.element.sums[rank] for of in seen)]
    rows = []
    for of in seen:
        unit = of.element.allowed
        if of.element.size > 0 and unit > 0:
            rows.append(([of.element.sums[rank] / ranks / unit for rank in gave], of.got / unit))
    if ranks > MOST_WEIGHTS or len(rows) < len(gave) + 2:
        return None
    every = range(len(gave))
    matrix = [[sum(row[i] * row[j] for row, _ in rows) for j in every] for i in every]
    vector = [sum(row[i] * got for row, got in rows) for i in every]
    found = solved(matrix, vector)
    if found is None:
        return None
    weights = dict(zip(gave, found, strict=True))
    return [weights.get(rank, 1.0) for rank in range(ranks)]


def solved(matrix: list[list[float]], vector: list[float]) -> list[float] | None:
    """The solution of linear equations by elimination with pivots; None where they have no single one."""
    size = len(vector)
    rows = [[*row, right] for row, right in zip(matrix, vector, strict=True)]
    largest = max((abs(number) for row in matrix for number in row), default=0.0)
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        if abs(rows[pivot][column]) <= 1e-9 * largest:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for row in range(column + 1, size):
            factor = rows[row][column] / rows[column][column]
            rows[row] = [below - factor * above for below, above in zip(rows[row], rows[column], strict=True)]
    found = [0.0] * size
    for row in reversed(range(size)):
        known = sum(rows[row][column] * found[column] for column in range(row + 1, size))
        found[row] = (rows[row][size] - known) / rows[row][row]
    return found
