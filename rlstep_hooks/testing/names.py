"""Error messages about unknown names."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def unknown_name(problem: str, name: str, known: Sequence[str]) -> str:
    """A message with the known names most like the unknown one, or with all known names.

    Args:
        problem: The problem, in words that the name can follow.
        name: The unknown name.
        known: The known names.
    """
    near = get_close_matches(name, known, n=3)
    if near:
        return f"{problem} {name}; did you mean {' or '.join(near)}?"
    return f"{problem} {name}; there are {', '.join(known)}"
