"""Messages about names that do not exist."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def unknown_name(problem: str, name: str, known: Sequence[str]) -> str:
    """A message that names the nearest names that exist, or all where none is near.

    Args:
        problem: What is wrong, in words that the name can follow.
        name: The name that does not exist.
        known: Those that do.
    """
    near = get_close_matches(name, known, n=3)
    if near:
        return f"{problem} {name}; did you mean {' or '.join(near)}?"
    return f"{problem} {name}; there are {', '.join(known)}"
