"""Entropies that training computed for one row, beside those of a forward of the row alone (`clean_forward`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

EXPLAINED = 0.05
"""The share of a distance that a mistake may leave."""


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
    like = "" if gap <= tolerance else _like(clean, observed, gap * unit)
    return {"entropy_gap": gap, "entropy_like": like}


def _like(clean: Tensor, observed: Tensor, gap: float) -> str:
    """The words of the mistake that is nearest, if it is near enough."""
    left, words = min((float((of - observed).abs().nanmean()), words) for words, of in _mistaken(clean, observed))
    return words if left <= EXPLAINED * gap else ""


def _mistaken(clean: Tensor, observed: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield "0", torch.zeros_like(clean)
    nothing = torch.full_like(clean[:1], torch.nan)
    if clean.numel() > 1:
        yield "those of the token before each", torch.cat([nothing, clean[:-1]])
        yield "those of the token after each", torch.cat([clean[1:], nothing])
    factor = float((observed * clean).sum() / clean.square().sum().clamp(min=1e-12))
    yield f"{factor:.3g} times the entropies", factor * clean
