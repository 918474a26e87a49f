"""What a mean over tokens hides: how many log-probs are off, and how far the farthest hundredth of them is.

Nothing waits for the device. Shapes: N comparisons, L places of tokens in each.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

RATIOS = math.log(0.9), math.log(1.1)
"""Log ratios between which a token's probability counts as the same (trl issue 6789)."""
FARTHEST = 0.01
"""The share of the tokens that is beyond the 99th percentile."""


def outside(log_ratio: Tensor) -> Tensor:
    """Where a ratio leaves [0.9, 1.1]."""
    return (log_ratio < RATIOS[0]) | (log_ratio > RATIOS[1])


def near_largest(distance: Tensor, tokens: Tensor) -> Tensor:
    """The 99th percentile of each comparison, (N,), interpolated as by `torch.quantile`.

    Only the farthest places are sorted, and tokens are not taken apart from places that do not count: both would cost more.

    Args:
        distance: (N, L), at least 0, and 0 at places that do not count.
        tokens: (N,), how many places count.
    """
    places = distance.shape[1]
    farthest = distance.topk(min(places, int(FARTHEST * (places - 1)) + 2), dim=1).values
    before = (FARTHEST * (tokens - 1)).clamp(min=0.0)
    place = before.long().unsqueeze(1)
    nearer = farthest.gather(1, (place + 1).clamp(max=farthest.shape[1] - 1))
    return torch.lerp(farthest.gather(1, place), nearer, before.frac().unsqueeze(1)).squeeze(1)


def gap_fields(gaps: Tensor) -> dict[str, Any]:
    """The fields of `RolloutValues` about the engine's log-probs.

    Args:
        gaps: (L,) float32, trainer log-prob - engine log-prob of each token; at least one.
    """
    distance = gaps.abs()
    return {
        "sampler_gap_mean": float(distance.mean()),
        "sampler_gap_max": float(distance.max()),
        "sampler_gap_99": float(near_largest(distance.unsqueeze(0), torch.tensor([gaps.numel()], device=gaps.device))),
        "sampler_gap_outside": float(outside(gaps).float().mean()),
        "sampler_gap_tokens": gaps.numel(),
    }
