"""What joining a rollout's turns with its rows found, as fields of its values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlstep_hooks.observe.turn_rows import Joined


def fields_of(found: Joined) -> dict[str, Any]:
    """The fields of `RolloutValues`; none where nothing was compared."""
    if not found.rows and not found.tokens_moved:
        return {}
    fields: dict[str, Any] = {
        "turns": found.turns,
        "tokens_moved": found.tokens_moved,
        "masks_wrong": found.masks_wrong,
        "tokens_sampled": found.sampled,
        "tokens_written": found.written,
        "rows_joined": found.rows,
    }
    if found.log_probs_compared:
        fields |= {"sampling_moved": found.log_probs_moved, "sampling_like": found.log_probs_like}
    names = ("tokens_like", "tokens_at", "masks_like", "masks_at", "wrong_row")
    return fields | {name: like for name in names if (like := getattr(found, name))}
