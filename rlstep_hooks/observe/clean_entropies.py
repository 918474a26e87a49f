"""Entropies that training computed for one row, beside those of a forward of the row alone (`clean_forward`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.explained_distance import cause_of, participation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

ENOUGH = 3
"""Tokens that share the entropy of a row from which a factor is named: one entropy is always a factor times what it should be."""


def entropy_fields(clean: Tensor, observed: Tensor, tolerance: float) -> dict[str, Any]:
    """The fields of `MicroBatchValues` about the entropies of one row; waits for the device.

    Args:
        clean: (C,), by a forward of the row alone.
        observed: (C,), what training computed.
        tolerance: The mean distance that rounding explains, over the mean entropy where that is above 1.
    """
    observed = observed.detach().float()
    unit = max(float(clean.mean()), 1.0)
    gap = float((observed - clean).abs().mean()) / unit
    like = "" if gap <= tolerance else cause_of(observed, clean, _mistaken(clean, observed), tolerance * unit)
    return {"entropy_gap": gap, "entropy_like": like}


def _mistaken(clean: Tensor, observed: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield "0", torch.zeros_like(clean)
    nothing = torch.full_like(clean[:1], torch.nan)
    if clean.numel() > 1:
        yield "those of the token before each", torch.cat([nothing, clean[:-1]])
        yield "those of the token after each", torch.cat([clean[1:], nothing])
    if not float(participation(clean)) >= ENOUGH:
        return
    factor = float((observed * clean).sum() / clean.square().sum().clamp(min=1e-12))
    yield f"{factor:.3g} times the entropies", factor * clean
