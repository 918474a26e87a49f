"""Limits on what a plan counts one by one, so that an absurd setting does not cause an endless calculation."""

from __future__ import annotations

import math

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
