"""Compares one update's reduced gradients with the documented combination of its parts, and names what they are instead."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from rlstep_hooks.judge.ranks.reduction.mistakes import LEFT_OVER, Before, Seen, fitted, known_mistakes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rlstep_hooks.judge.ranks.reduction.mistakes import Mistake
    from rlstep_hooks.judge.ranks.reduction.parts import Joined
    from rlstep_hooks.planning.finding import Severity

SURELY = 4.0
"""Multiples of what rounding explains from which on a gradient is another one. Healthy ones stay below 1 (measured: 0.5)."""
BEYOND_DOUBT = 100.0
"""Multiples from which on one that no known mistake gives is an error."""
LEAST = 3
"""Elements that a known mistake must give, at least, to be named."""
WELL_KNOWN = 0.1
"""A mean of at least this part of the size of its parts has its digits: its ratio to what came of it says something."""
MOST_RANKS = 4
"""Ranks whose gradients are looked at one by one where no mistake is that of all."""

Earlier = dict[tuple[str, int], Before]
"""Elements of the update before, by tensor and position."""


class Difference(NamedTuple):
    """What is another gradient than documented, in one update."""

    observed: str
    variant: str
    severity: Severity
    rank: int | None
    """The rank at fault, where a single one is."""
    why: str
    fix: str
    tensors: tuple[str, ...]
    """Names of the tensors whose gradient differs."""
    of: int
    """Tensors that were compared."""
    off: float
    """The largest distance, in units of what rounding explains."""
    explained_by: str = ""
    """The code of the rule whose finding explains the difference, where one does."""
    unknown: bool = False
    """Whether no known mistake gives the observed gradient."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of the comparison of one update."""

    compared: int
    """Elements that were compared, on each rank that holds them."""
    worst: float
    differences: tuple[Difference, ...]


def earlier_of(joined: Joined) -> Earlier:
    """What the comparison of the next update needs of this one."""
    return {
        (tensor.name, position): Before(element.sums, dict(element.used), element.size)
        for tensor in joined.tensors
        for position, element in enumerate(tensor.elements)
        if element.finite
    }


def compare(
    joined: Joined, ranks: int, earlier: Earlier, *, factor: float | None = 1.0, approximate: bool = False
) -> Comparison:
    """Compare the gradients of one update.

    Args:
        joined: The parts of all ranks.
        ranks: How many there are, at least 2.
        earlier: The elements of the update right before, as far as they were followed.
        factor: What the reduced gradients were multiplied by before they were read; None where it is not known, and one for all.
        approximate: Whether the reduction may be one that no dtype's rounding explains; then known mistakes alone are told.
    """
    seen = list(_seen(joined, earlier))
    none = _without_gradient(joined)
    rows = [of for of, _ in seen]
    distances = _distances(rows, [of.element.mean for of in rows], factor, 1.0)
    wrong = [place for place, distance in enumerate(distances) if distance > SURELY]
    worst = max(distances, default=0.0)
    differences = list(none)
    if wrong:
        differences += _named(seen, distances, ranks, factor, len(joined.tensors), approximate=approximate)
    return Comparison(len(rows), worst, tuple(differences))


def _seen(joined: Joined, earlier: Earlier) -> Iterator[tuple[Seen, str]]:
    for tensor in joined.tensors:
        for position, element in enumerate(tensor.elements):
            if element.finite:
                before = earlier.get((tensor.name, position))
                for rank, got in element.reduced.items():
                    yield Seen(element, rank, got, before), tensor.name


def _distances(seen: Sequence[Seen], wanted: Sequence[float], factor: float | None, grows: float) -> list[float]:
    """How far each gradient is from what a formula gives, in units of what rounding explains."""
    known, within = _factor(seen, wanted) if factor is None else (factor, 0.0)
    found = []
    for of, want in zip(seen, wanted, strict=True):
        allowed = abs(known) * (grows * of.element.allowed + within * abs(want)) + of.element.smallest
        found.append(abs(of.got - known * want) / allowed)
    return found


def _factor(seen: Sequence[Seen], wanted: Sequence[float]) -> tuple[float, float]:
    """The factor that most of the gradients have, and how well it is known, relatively."""
    known = [
        (of.got / want, of.element.allowed / abs(want))
        for of, want in zip(seen, wanted, strict=True)
        if abs(want) >= WELL_KNOWN * of.element.size > 0
    ]
    if not known:
        return 1.0, math.inf
    return median(ratio for ratio, _ in known), max(within for _, within in known)


def _without_gradient(joined: Joined) -> Iterator[Difference]:
    """Tensors of which a rank that holds them has no gradient, although ranks gave some."""
    lacking: dict[str, set[int]] = {}
    for tensor in joined.tensors:
        for element in tensor.elements:
            if element.without and element.size > 0:
                lacking.setdefault(tensor.name, set()).update(element.without)
    if not lacking:
        return
    ranks = sorted(set().union(*lacking.values()))
    holders = {rank for tensor in joined.tensors for of in tensor.elements for rank in (*of.reduced, *of.without)}
    one = ranks[0] if len(ranks) == 1 < len(holders) else None
    who = "the ranks that hold it have" if one is None else f"rank {one} has"
    yield Difference(
        f"{who} no gradient after the reduction",
        f"none {one}",
        "error",
        one,
        "gradients stay where no optimizer looks for them, so nothing of them is learned",
        "look for a switch of synchronisation that is left off (no_sync, set_requires_gradient_sync), and for what clears gradients",
        tuple(lacking),
        len(joined.tensors),
        math.inf,
    )


def _named(
    seen: Sequence[tuple[Seen, str]],
    distances: Sequence[float],
    ranks: int,
    factor: float | None,
    tensors: int,
    *,
    approximate: bool,
) -> list[Difference]:
    """What the gradients are that are not the mean: of all ranks together where one mistake gives them all, else of each."""
    wrong = {name for (_, name), distance in zip(seen, distances, strict=True) if distance > SURELY}
    holders = sorted({of.rank for (of, _), distance in zip(seen, distances, strict=True) if distance > SURELY})
    affected = [(of, name, off) for (of, name), off in zip(seen, distances, strict=True) if name in wrong]
    together = [row for row in affected if row[0].rank in holders]
    mistake = named_of([of for of, _, _ in together], ranks, factor)
    groups: list[tuple[Mistake | None, list[tuple[Seen, str, float]], int | None]] = []
    if mistake is not None or len(holders) == 1:
        groups = [(mistake, together, None)]
    else:
        for rank in holders[:MOST_RANKS]:
            rows = [row for row in affected if row[0].rank == rank]
            groups.append((named_of([of for of, _, _ in rows], ranks, factor), rows, rank))
        if all(named is None for named, _, _ in groups):
            groups = [(None, together, None)]
    everyone = {of.rank for of, _ in seen}
    found = []
    for named, rows, of_rank in groups:
        here = of_rank if of_rank is not None else holders[0] if len(holders) == 1 < len(everyone) else None
        if named is None and approximate:
            continue
        found.append(_difference(named, [row for row in rows if row[2] > SURELY], here, tensors))
    return found


def named_of(seen: Sequence[Seen], ranks: int, factor: float | None) -> Mistake | None:
    """The mistake that gives all of these gradients; None where no known one does. Arguments as for `compare`."""
    telling = [of for of in seen if of.element.size > 0 or of.got]
    if len(telling) < LEAST:
        return None
    passes = max(len(part) for of in telling for part in of.element.parts)
    for mistake in known_mistakes(ranks, passes):
        if not (factor is None and mistake.proportional) and _gives(mistake, telling, factor):
            return mistake
    weights = fitted(telling, ranks) if factor is not None else None
    return weights if weights is not None and _gives(weights, telling, factor) else None


def _gives(mistake: Mistake, seen: Sequence[Seen], factor: float | None) -> bool:
    rows: list[Seen] = []
    wanted: list[float] = []
    for of in seen:
        want = mistake.value(of)
        if want is None:
            if of.before is None and of.element.size > 0:
                continue  # what was not followed in the update before speaks neither for it nor against it
            return False
        rows.append(of)
        wanted.append(want)
    if len(rows) < LEAST or not _tells(rows, wanted):
        return False
    rows = _with_sizes_of_before(rows) if mistake.earlier else rows
    return max(_distances(rows, wanted, factor, mistake.grows)) <= 1.0


def _tells(seen: Sequence[Seen], wanted: Sequence[float]) -> bool:
    """Whether a mistake gives other numbers than the documented mean."""
    return any(abs(want - of.element.mean) > SURELY * of.element.allowed for of, want in zip(seen, wanted, strict=True))


def _with_sizes_of_before(seen: Sequence[Seen]) -> list[Seen]:
    """Rows whose rounding counts what the update before added too, where that was larger."""
    return [
        of._replace(element=replace(of.element, size=of.before.size))
        if of.before is not None and of.before.size > of.element.size
        else of
        for of in seen
    ]


def _difference(
    mistake: Mistake | None, rows: Sequence[tuple[Seen, str, float]], rank: int | None, tensors: int
) -> Difference:
    names = tuple(dict.fromkeys(name for _, name, _ in rows))
    off = max(distance for _, _, distance in rows)
    if mistake is None:
        return Difference(
            f"other numbers, {min(off, 1e12):.3g} times as far off as rounding explains",
            f"other {rank}",
            "error" if off > BEYOND_DOUBT else "warning",
            rank,
            "something between the backward passes of the ranks and the reduced gradient is not what it is documented to be",
            "look for hooks on parameters, code that writes to .grad, and what stands in for the framework's own reduction",
            names,
            tensors,
            off,
            unknown=True,
        )
    of_rank = mistake.rank if mistake.rank is not None else rank
    return Difference(
        mistake.observed,
        mistake.variant,
        "error",
        of_rank,
        mistake.why,
        mistake.fix,
        names,
        tensors,
        off,
        "RLS803" if mistake.variant == LEFT_OVER else "",
    )
