"""How the rows of made-up plans become rollouts."""

from __future__ import annotations

from rlstep_hooks.planning.phases import Loader, Passes


def passes_of(rows: int | None, prompts: int, *, epochs: int = 1, loader: Loader = "drops") -> Passes:
    """Whole passes over the rows, by a loader that drops the rest or keeps it."""
    if rows is None:
        return Passes.of_unknown_rows(None)
    each = rows // prompts if loader == "drops" else -(-rows // prompts)
    return Passes.of_loader(loader, rows, prompts, rollouts=each * epochs)
