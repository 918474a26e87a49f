"""Which of the trained tensors get gradients."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

_IN_A_LAYER = re.compile(r"\.\d+\.")
"""Part of the name of a tensor in one of a model's numbered layers."""


class GradedTensors:
    """Looks at the gradients of a model when its optimizer is about to step.

    Args:
        named: The trained tensors with their names; those without a name are in no layer.
    """

    def __init__(self, named: Iterable[tuple[str, Any]]) -> None:
        # A shard may hold nothing of a tensor, and then gets no gradient of it.
        self._never = [(name, tensor) for name, tensor in named if tensor.numel()]
        """Tensors without a gradient at any look so far, with their names."""
        self._named = any(name for name, _ in self._never)
        self._matrices = [
            tensor
            for name, tensor in self._never
            # Tokens may reach an expert in one update and not in the next.
            if _IN_A_LAYER.search(name) and "expert" not in name and tensor.dim() > 1
        ]
        self._graded: list[Any] | None = None
        """Matrices of layers that had a gradient at the first look."""

    def look(self, *, whole: bool) -> dict[str, int]:
        """Gradients are final. Gives what is to be said of them, as fields of UpdateValues.

        Args:
            whole: Whether to say it in any case; else it is said if a tensor has its first gradient.
        """
        known = len(self._never)
        self._never = [(name, tensor) for name, tensor in self._never if tensor.grad is None]
        if self._graded is None:
            self._graded = [tensor for tensor in self._matrices if tensor.grad is not None]
        if not whole and len(self._never) == known:
            return {}
        never = {"ungraded": len(self._never)}
        return never | {"gradient_lost": self._lost()} if whole and self._named else never

    def _lost(self) -> int:
        """Matrices of numbered layers that had a gradient at the first look, still require one, and have none now. Experts of a mixture
        are left out."""
        return sum(tensor.grad is None and tensor.requires_grad for tensor in self._graded or ())
