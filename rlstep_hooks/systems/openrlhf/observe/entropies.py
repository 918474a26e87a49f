"""The entropies that an entropy bonus is computed from, beside the logits of the same forward. B samples, L tokens, V words.

Source: OpenRLHF 0.11.2, models/actor.py `Actor.forward`, models/utils.py `compute_entropy`, trainer/ray/ppo_actor.py `training_step`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

if TYPE_CHECKING:
    from rlstep_hooks.observe.losses import LossBatch

TOKENS = 64
"""Tokens of one row of a micro-batch whose entropies are computed again: those of 150 000 words take 40 MB in float32."""


class Computed(msgspec.Struct):
    """The entropies of one micro-batch."""

    all: Tensor
    """(B, L - 1), as the loss takes them."""
    row: int
    """The row that is looked at again."""
    first: int
    """The first of its tokens that are."""
    again: Tensor | None
    """(N,), the entropies of these tokens by the logits; None where the logits do not stand row by row."""


def computed_by(result: Any, microbatch: int) -> Computed | None:
    """The entropies of a forward; None where it computed none.

    Args:
        result: What `Actor.forward` returned.
        microbatch: Its number: others are looked at in each.
    """
    if not isinstance(result, tuple):
        return None
    log_probs, output = result
    entropies = getattr(output, "entropy", None)
    if not isinstance(entropies, Tensor):
        return None
    samples, length = log_probs.shape[0], entropies.shape[1]
    logits = output["logits"]
    row, first = microbatch % samples, max(length - TOKENS, 0) // 2
    again = None
    if logits.shape[:2] == (samples, length + 1):  # packed rows stand one behind the other
        with torch.no_grad():
            of_row = logits[row, first : min(first + TOKENS, length)].float()
            again = torch.special.entr(of_row.softmax(-1)).sum(-1)
    return Computed(entropies, row, first, again)


def gradient_gap(given: LossBatch, coefficient: float, gradient: Tensor) -> float:
    """How far the gradient that arrived at the entropies is from that of the documented bonus, in roundings.

    The bonus is a mean over the tokens of the update, multiplied by the coefficient and subtracted.

    Args:
        given: What the loss was computed from.
        coefficient: The configured one.
        gradient: B * T numbers.
    """
    expected = -coefficient * given.ranks * given.mask / max(float(given.tokens or 0.0), 1e-8)
    of = torch.finfo(torch.float32)
    rounding = float(of.eps) * max(float(expected.abs().max()), float(of.tiny))
    return float((gradient.view(expected.shape) - expected).abs().max()) / rounding
