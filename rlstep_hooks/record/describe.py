"""An exception in words, for a record."""

from __future__ import annotations


def describe(error: BaseException) -> str:
    """An exception's type and text."""
    return f"{type(error).__name__}: {error}"
