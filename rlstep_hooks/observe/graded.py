"""Which of the trained tensors get gradients."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_IN_A_LAYER = re.compile(r"\.\d+\.")
"""Part of the name of a tensor in one of a model's numbered layers."""


def _is_of_a_layer(name: str, dimensions: int) -> bool:
    """Whether a tensor is a matrix in a numbered layer. Tokens may reach an expert in one update and not in the next."""
    return dimensions > 1 and "expert" not in name and _IN_A_LAYER.search(name) is not None


def frozen_matrices(named: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The fact `frozen_matrices`, which rule RLS408 reads where no setting freezes any: how many matrices of a model's numbered layers
    there are, how many of them are frozen, and the first of these.

    Args:
        named: All parameters of the model with their names.
    """
    matrices = {name: tensor for name, tensor in named if tensor.dim() > 1 and _IN_A_LAYER.search(name)}
    frozen = sorted(name for name, tensor in matrices.items() if not tensor.requires_grad)
    return {"frozen": len(frozen), "all": len(matrices), "first": frozen[0] if frozen else ""}


class GradedByHooks:
    """Looks which matrices of a model's layers get a gradient from the backward passes of some updates, where the tensors do not show
    it when the optimizer steps: DeepSpeed takes gradients out of them, and DDP gives each rank those of the others.

    Args:
        named: The trained tensors, with their names and dimensions.
    """

    def __init__(self, named: Iterable[tuple[str, Any, int]]) -> None:
        self._matrices = [tensor for name, tensor, dimensions in named if _is_of_a_layer(name, dimensions)]
        self._reached: set[int] = set()
        """Places of the matrices that got a gradient since `begin`."""
        self._handles: list[Any] = []
        self._graded: set[int] = set()
        """Places of the matrices that got a gradient in the first update that was looked at."""

    def begin(self) -> None:
        """Forget what got a gradient: the first backward pass of an update comes next."""
        self.remove()
        self._reached = set()
        self._handles = [
            tensor.register_hook(_note(self._reached, place))
            for place, tensor in enumerate(self._matrices)
            if tensor.requires_grad
        ]

    def look(self) -> dict[str, int]:
        """The backward passes of an update are done. Gives what is to be said of them, as fields of UpdateValues: nothing where nobody
        has looked."""
        if not self._handles:
            return {}
        self.remove()
        self._graded = self._graded or self._reached
        lost = [place for place in self._graded - self._reached if self._matrices[place].requires_grad]
        return {"gradient_lost": len(lost)}

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


def _note(reached: set[int], place: int) -> Callable[[Any], None]:
    def came(gradient: Any) -> None:
        reached.add(place)

    return came


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
        self._matrices = [tensor for name, tensor in self._never if _is_of_a_layer(name, tensor.dim())]
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

    @property
    def is_done(self) -> bool:
        """Whether every tensor has had a gradient, so that only what is said in any case is left."""
        return not self._never and self._graded is not None

    def _lost(self) -> int:
        """Matrices of numbered layers that had a gradient at the first look, still require one, and have none now. Experts of a mixture
        are left out."""
        return sum(tensor.grad is None and tensor.requires_grad for tensor in self._graded or ())
