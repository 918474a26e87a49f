"""Numbers written for people."""

from __future__ import annotations

from fractions import Fraction

import pytest

from rlstep_hooks.planning.words import percent


@pytest.mark.parametrize(
    ("share", "written"),
    [
        (1, "100 %"),
        (Fraction(2, 3), "67 %"),
        (0.995, "100 %"),
        (0.0996, "10 %"),
        (0.1, "10 %"),
        (0.0123, "1.2 %"),
        (Fraction(1, 3000), "0.033 %"),
        (0, "0 %"),
        (1.5, "150 %"),
    ],
)
def test_percent(share: float | Fraction, written: str) -> None:
    """A whole is 100 %, and never the 1e+02 % of two significant digits."""
    assert percent(share) == written
