"""How much rounding a tolerance allows for."""

from __future__ import annotations

from typing import Literal

Precision = Literal["float32", "reduced"]


def precision_class(dtype: str) -> Precision:
    """The tolerance class of a compute dtype, as torch names it."""
    return "float32" if dtype in ("float32", "float64") else "reduced"


def how_far(value: float, bound: float) -> str:
    """How far a value is beyond its bound, in powers of ten up to 100. Values of different powers are seldom one fault."""
    return "over 100 times" if value > 100 * bound else "over 10 times" if value > 10 * bound else "up to 10 times"
