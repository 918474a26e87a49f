"""Gradients between the last backward pass of an update and the step, for engines that reduce them on the way.

What FSDP hands to autograd is not what the optimizer gets: gradients of whole tensors are added over processes and cut into shards.
From the end of the last backward pass to the step nothing but the clip may change them, which multiplies all by one factor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.gradient_watch import AT_A_TIME, PER_TENSOR, GradientSource, Window

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor


class GradientSnapshot:
    """Compares the gradients of some tensors, others in each update.

    Args:
        parameters: The trained tensors, or their local parts, with their names.
    """

    def __init__(self, parameters: Iterable[tuple[str, Any]]) -> None:
        self._tensors = [(name, p) for name, p in parameters if p.requires_grad and p.numel()]
        self._next = 0
        self._made: list[tuple[str, Any, Tensor]] = []
        self._held: list[Window] = []

    def made(self) -> None:
        """The backward passes of an update are done."""
        count = min(AT_A_TIME, len(self._tensors))
        turn = [self._tensors[(self._next + place) % len(self._tensors)] for place in range(count)]
        self._next += count
        self._made = [(name, p, _part(p).clone()) for name, p in turn if p.grad is not None]

    def before_step(self, update: int) -> None:
        """Take the gradients as the optimizer is about to use them."""
        made, self._made = self._made, []
        if made:
            used = tuple(part.new_zeros(part.shape) if p.grad is None else _part(p).clone() for _, p, part in made)
            self._held.append(Window(update, tuple(name for name, _, _ in made), tuple((of,) for *_, of in made), used))

    def work_up(self) -> list[tuple[GradientSource, Tensor]]:
        """The numbers of all updates since the last call."""
        held, self._held = self._held, []
        return [(GradientSource(of.update, of.names, None), of.compare()) for of in held]


def _part(parameter: Any) -> Tensor:
    """Some of the gradient's numbers: as many of each part of the tensor."""
    gradient = parameter.grad.detach()
    values = gradient if gradient.is_contiguous() else gradient.contiguous()
    count = min(values.numel(), PER_TENSOR)
    part: Tensor = values.as_strided((count,), (values.numel() // count,), values.storage_offset())
    return part
