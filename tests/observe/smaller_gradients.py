"""A mistake of a backward pass: a part of a model hands back less than a third of its gradient."""

from __future__ import annotations

from typing import Any

import torch


class Fewer(torch.autograd.Function):
    """Gives its input, and less than a third of the gradient."""

    @staticmethod
    def forward(ctx: Any, hidden: Any) -> Any:
        """The input."""
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Less than a third of it."""
        return gradient * 0.3
