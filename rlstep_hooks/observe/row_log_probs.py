"""Whether the log-probs of the sampling in a row stand at the tokens that they were drawn with."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlstep_hooks.observe.turn_rows import Comparison, Ids, Joined, Row

FEWEST = 4
"""Tokens with known log-probs from which on a shift of them is named."""
CLOSE = 0.02
"""Nats up to which two computations of one log-prob are taken for the same: a shift is named where all tokens are this close."""
_SHIFTS = ((1, "before"), (-1, "after"))


def compare_log_probs(found: Joined, of: Comparison, sampled: Ids) -> None:
    """Whether the log-probs of the sampling stand at their tokens: as they were handed over, and as the tokens were drawn."""
    row = of.row
    if row.log_probs is None:
        return
    drawn = drawn_of(of)
    places = [place for place, one in enumerate(sampled) if one and drawn.get(place) is not None]
    found.log_probs_compared += row.handed is not None or bool(places)
    like = ""
    if row.handed is not None and not _equal(row.handed, row.log_probs):
        like = _shift_of(row, drawn, places) or "other ones than were handed over"
    elif len(places) >= FEWEST and not _near(row.log_probs, drawn, places, 0):
        like = _shift_of(row, drawn, places)
    if like:
        found.log_probs_moved += 1
        found.log_probs_like = found.log_probs_like or like


def _shift_of(row: Row, drawn: dict[int, float], places: list[int]) -> str:
    """Which neighbour's log-probs a row has, in words; empty where they are no neighbour's."""
    numbers = row.log_probs or []
    for shift, name in _SHIFTS:
        of_handed = row.handed is not None and _equal(_shifted(row.handed, shift)[1:-1], numbers[1:-1])
        if of_handed or (len(places) >= FEWEST and _near(numbers, drawn, places, shift)):
            return f"those of the token {name} it"
    return ""


def note_log_probs(found: Joined, like: str) -> None:
    """A row whose log-probs cannot be compared token by token."""
    found.log_probs_compared += 1
    found.log_probs_moved += 1
    found.log_probs_like = found.log_probs_like or like


def drawn_of(of: Comparison) -> dict[int, float]:
    """Place in the completion -> the log-prob with which a token was drawn, where it is known."""
    before, found = len(of.row.prompt), {}
    for request in of.chain:
        start = len(request.asked) - before
        for place, one in enumerate(request.log_probs or ()):
            if not math.isnan(one):
                found[start + place] = one
    return found


def _equal(one: list[float], other: list[float]) -> bool:
    """Whether two lists hold the same numbers; nan counts as equal to nan."""
    return len(one) == len(other) and all(a == b or (a != a and b != b) for a, b in zip(one, other, strict=True))


def _shifted(numbers: list[float], shift: int) -> list[float]:
    return [0.0, *numbers[:-1]] if shift > 0 else [*numbers[1:], 0.0]


def _near(numbers: list[float], drawn: dict[int, float], places: list[int], shift: int) -> bool:
    """Whether the log-probs are those with which tokens were drawn, each so many places from its own."""
    pairs = [(numbers[place], drawn[place - shift]) for place in places if place - shift in drawn]
    return len(pairs) >= FEWEST - 1 and all(abs(a - b) <= CLOSE for a, b in pairs)
