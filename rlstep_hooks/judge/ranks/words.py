"""Ranks in words, for findings and reasons. At most eight are named."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def listed(ranks: Sequence[int]) -> str:
    """The numbers alone: "0, 2, 5"."""
    shown = ", ".join(map(str, ranks[:8]))
    return shown + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


def named(ranks: Sequence[int]) -> str:
    """The ranks as the subject of a sentence: "rank 3", "ranks 0, 2, 5"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {listed(ranks)}"
