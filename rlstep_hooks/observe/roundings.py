"""How far rounding brings numbers of a framework from those that are computed again in float64. No torch: exports use them too."""

from __future__ import annotations

FLOAT32_EPSILON = 2.0**-23
"""The distance from 1 to the next float32."""
ROUNDINGS = 32
"""Roundings of the largest term that sums and differences of some thousand numbers in float32 explain."""
RELATIVE = 2e-5
"""Relative error of a standard deviation of some thousand numbers in float32, and of a division by it: less than TRL adds to a
deviation of a few units (1e-4), so that this is seen where it is left out."""
ABSOLUTE = 1e-6
