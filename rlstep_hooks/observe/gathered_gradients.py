"""Gradients from autograd to the optimizer on the one process of a model that FSDP gathers for its forwards.

They arrive at other leaves than the tensors that the optimizer steps, and are added up on their way (`sharding.places`). On one process
nothing is added that it did not give itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.gradient_watch import AT_A_TIME, PER_TENSOR, GradientWatch
from rlstep_hooks.observe.shards import local_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from rlstep_hooks.observe.guard import Guard
    from rlstep_hooks.observe.sharding.places import ParameterPlaces


class GatheredGradientWatch(GradientWatch):
    """Follows the gradients of some tensors through the windows that it is told to, all tensors by turns.

    Args:
        parameters: The trained tensors with their names, as the optimizer has them.
        places: Where each is before and after its gradients were added up.
        guard: Contains errors inside the hooks, which stand in the backward pass.
    """

    def __init__(self, parameters: Iterable[tuple[str, Any]], places: Sequence[ParameterPlaces], guard: Guard) -> None:
        super().__init__(parameters, guard)
        self._places = [of for of in places if of.numel]

    def begin_window(self) -> None:
        """Follow some tensors through the window that begins."""
        self.remove()
        every = len(self._places)
        chosen = [self._places[(self._next + place) % every] for place in range(min(AT_A_TIME, every))]
        self._next += len(chosen)
        self._followed = [_Gathered(of, self._guard) for of in chosen]


class _Gathered:
    """One tensor in one window."""

    def __init__(self, places: ParameterPlaces, guard: Guard) -> None:
        self.name = places.name
        self.arrived: list[Tensor] = []
        self._guard = guard
        count = min(places.numel, PER_TENSOR)
        elements = range(0, count * (places.numel // count), places.numel // count)
        held = [place for element in elements if (place := places.place_of(element)) is not None]
        # What is not all in one tensor of the optimizer is not compared.
        self._tensor: Any = held[0].tensor if len({id(of.tensor) for of in held}) == 1 else None
        self._elements = torch.tensor(elements)
        self._positions = torch.tensor([of.at for of in held])
        self._remove: Callable[[], None] | None = None
        if self._tensor is not None and len(held) == count:
            with guard:
                self._remove = places.watch_local(self._arrives)

    def _arrives(self, gradient: Tensor) -> None:
        with self._guard:
            self._elements = self._elements.to(gradient.device, non_blocking=True)
            self.arrived.append(torch.take(gradient.detach(), self._elements))

    def taken_by_others(self) -> bool:
        """Whether an optimizer within the backward pass uses up gradients as they come."""
        return self._tensor.grad is None and bool(getattr(self._tensor, "_post_accumulate_grad_hooks", None))

    def used(self) -> Tensor:
        """What the optimizer is about to use; 0 where there is nothing."""
        gradient = self._tensor.grad
        if gradient is None:
            return torch.zeros_like(self.arrived[0])
        local = local_part(gradient).detach()
        return torch.take(local, self._positions.to(local.device, non_blocking=True))

    def remove(self) -> None:
        """Take the hook off."""
        if self._remove is not None:
            self._remove()
            self._remove = None
