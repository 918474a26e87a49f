"""Numbers, and words that several rooms share, written for people."""

from __future__ import annotations

from fractions import Fraction

WEIGHTS_OF_TOKENS = "those of each token, 0 where that of the sequence is beyond its bounds"
"""What weights of sequences are mistaken for, in words: the bound looks at the sequence, and the tokens keep weights of their own."""
ENDS_OF_CUT_TURNS = "ends that the chat template put behind cut turns are trained"
"""What is wrong with a row whose turns were cut and go on, where the template's end behind each is trained."""

_SINGULAR = {"micro-batches": "micro-batch", "passes": "pass", "processes": "process"}


def number(value: int | Fraction | None, unit: str = "") -> str:
    """A count in words: thousands separated by spaces, fractions as they are, None as "not known"."""
    if value is None:
        return "not known" + (f" ({unit})" if unit else "")
    if isinstance(value, Fraction) and value.denominator != 1:
        text = f"{value.numerator}/{value.denominator}"
    else:
        text = f"{int(value):,}".replace(",", " ")
    if not unit:
        return text
    return f"{text} {_SINGULAR.get(unit, unit.removesuffix('s')) if value == 1 else unit}"


def approximate(value: Fraction | None) -> str:
    """A fraction as a decimal with few digits."""
    if value is None:
        return "not known"
    if value.denominator == 1:
        return number(value)
    return f"{float(value):,.1f}".replace(",", " ") if value >= 1 else f"{float(value):.2g}"


def percent(share: float | Fraction) -> str:
    """A share of 1 as a percentage with two significant digits: "0.25 %", "12 %", "100 %"."""
    percentage = 100 * float(share)
    return f"{percentage:.0f} %" if percentage >= 10 else f"{percentage:.2g} %"


def printable(text: str) -> str:
    """Text with escaped characters where they are invisible, control a terminal or change the writing direction."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else f"\\u{ord(c):04x}" for c in text)
