"""What rounding a tolerance allows for."""

from __future__ import annotations

from typing import Literal

Precision = Literal["float32", "reduced"]


def precision_class(dtype: str) -> Precision:
    """The tolerance class of a compute dtype, as torch names it."""
    return "float32" if dtype in ("float32", "float64") else "reduced"
