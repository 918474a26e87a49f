"""Limits on what a plan counts one by one, so that an absurd setting does not cause an endless calculation; and numbers near others."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MOST = 1_000_000
"""Most updates on a rollout, micro-batches of a period and the like that a plan lists; real runs have some thousands."""


class TooManyError(ValueError):
    """A plan would list more than any real run has: a setting is wrong by orders of magnitude."""


def countable(count: int, what: str = "updates on one rollout") -> int:
    """The number of things that a plan lists one by one, checked.

    Raises:
        TooManyError: It is above `MOST`.
    """
    if count > MOST:
        raise TooManyError(f"more than {MOST:_} {what} are too many to plan".replace("_", " "))
    return count


def divisors(value: int) -> list[int]:
    """All divisors, ascending.

    Raises:
        TooManyError: The value is above `MOST` squared.
    """
    if value > MOST * MOST:
        raise TooManyError(f"a rollout or an update of {value} samples is too large to plan")
    small = [divisor for divisor in range(1, math.isqrt(value) + 1) if value % divisor == 0]
    return sorted({*small, *(value // divisor for divisor in small)})


def nearest(value: int, valid: Callable[[int], bool], *, most: int = 1 << 22) -> str:
    """The valid values nearest to `value` on both sides, for a message: "64 or 128"."""
    below = next((v for v in range(value - 1, max(value - most, 0), -1) if valid(v)), None)
    above = next((v for v in range(value + 1, min(2 * value, value + most) + 65) if valid(v)), None)
    return " or ".join(str(v) for v in (below, above) if v is not None)


def multiples(value: int, of: int) -> str:
    """The multiples of `of` nearest to `value` on both sides, for a message."""
    below, above = value // of * of, -(-value // of) * of
    return " or ".join(str(v) for v in dict.fromkeys((below, above)) if v > 0)
