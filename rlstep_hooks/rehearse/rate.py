"""What the learning rates of a whole run show."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def zero_from(rates: Sequence[float]) -> int | None:
    """The tick from which on the rate is zero to the end; None where it ends above zero.

    One look at each rate at most: runs have hundreds of thousands.

    Args:
        rates: The rate at each tick.
    """
    last = next((tick for tick in range(len(rates) - 1, -1, -1) if rates[tick]), -1)
    return last + 1 if last + 1 < len(rates) else None
