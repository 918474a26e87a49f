"""The norm of the gradients that an optimizer steps with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor


def norm_of_gradients(optimizer: Any) -> Tensor | None:
    """The norm of all gradients that a step is about to use, as far as this process holds them; None where there is none, or torch
    computes none without waiting (before 2.6)."""
    if not hasattr(torch.nn.utils, "get_total_norm"):
        return None
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    local = [gradient.to_local() if hasattr(gradient, "to_local") else gradient for gradient in gradients]
    return torch.nn.utils.get_total_norm([gradient.detach() for gradient in local]).float() if local else None
