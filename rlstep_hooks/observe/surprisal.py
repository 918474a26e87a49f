"""How surprising a micro-batch's tokens are, as the test of `rlstep_hooks.judge.sampled` needs it: sums, computed on the device."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BEYOND_UNIFORM = 6.0
"""Nats beyond the logarithm of the vocabulary at which -log p is cut. It bounds what one token says, and moves a mean by less than
exp(-7)."""


def cap_of(vocabulary: int) -> float:
    """The cut of -log p for a vocabulary of this size."""
    return math.log(vocabulary) + BEYOND_UNIFORM


def surprisal_sums(log_probs: Tensor, entropies: Tensor, mask: Tensor, cap: float) -> dict[str, Tensor]:
    """Sums of d = min(-log p, cap) - entropy over the counted tokens of N micro-batches.

    Args:
        log_probs: (N, B, T), of the tokens.
        entropies: (N, B, T), of the distributions that they may have been drawn from.
        mask: (N, B, T), 1 on tokens that count.
        cap: The cut.

    Returns:
        Sum, sum of squares and largest one, each (N,) float32.
    """
    distance = (-log_probs.float()).clamp(max=cap) - entropies.float()
    distance = torch.where(mask.bool(), distance, 0.0).flatten(1)
    return {
        "surprise": distance.sum(1),
        "surprise_squares": distance.square().sum(1),
        "surprise_largest": distance.amax(1),
    }
