"""How far a plan counts one by one, and divisors: what keeps an absurd setting from becoming an endless calculation."""

from __future__ import annotations

import math

MOST = 1_000_000
"""Updates on one rollout, micro-batches of one period and the like, up to which a plan is made; real runs have some thousands."""


class TooManyError(ValueError):
    """A plan would list more than any run has: a setting is out by orders of magnitude."""


def countable(count: int, what: str = "updates on one rollout") -> int:
    """A number of things that a plan lists one by one.

    Raises:
        TooManyError: It is above `MOST`.
    """
    if count > MOST:
        raise TooManyError(f"more than {MOST:_} {what}: no plan is made of so many".replace("_", " "))
    return count


def divisors(value: int) -> list[int]:
    """All divisors, ascending.

    Raises:
        TooManyError: The value is above `MOST` squared.
    """
    if value > MOST * MOST:
        raise TooManyError(f"a rollout or an update of {value} samples: no plan is made of so many")
    small = [divisor for divisor in range(1, math.isqrt(value) + 1) if value % divisor == 0]
    return sorted({*small, *(value // divisor for divisor in small)})
