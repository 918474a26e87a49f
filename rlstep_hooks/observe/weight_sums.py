"""Whether any weight of a model, or any moment of its optimizer, changed between two updates: a sum of the bits of each tensor.

A probe reads a few weights of a few tensors at every update. These sums read all of them, in some cycles alone, and stay on the device.
Sums of integers do not depend on the order in which they are added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlstep_hooks.observe.bits import part_of, sums_in_any_order
from rlstep_hooks.observe.shards import local_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rlstep_hooks.observe.bits import SumsOfMoment


def weights_of(parameters: Iterable[Any]) -> Callable[[], list[Any]]:
    """Give what reads the trained tensors of some parameters, or of their local parts."""
    trained = [p for p in parameters if p.requires_grad and p.numel() and p.is_floating_point()]
    return lambda: trained


def moments_of(optimizer: Any) -> Callable[[], list[Any]]:
    """Give what reads all that a torch optimizer keeps of its tensors, of DTensors the local parts. The number of a tensor's steps may
    stand on the host, and its moments on the device."""

    def read() -> list[Any]:
        kept = (value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor))
        return [local for value in kept if (local := local_part(value)).numel()]

    return read


_Sums = dict[torch.device, Tensor]
"""Sums of tensors by the device that these are on."""


class TensorSums:
    """Compares tensors that only an update changes.

    Args:
        read: Gives the tensors.
    """

    def __init__(self, read: Callable[[], list[Any]]) -> None:
        self._read = read
        self._left: _Sums | None = None
        """The sums right after an update; None where they were not taken."""
        self._part: int | None = None
        """The part of each tensor that the sums are taken over; None for whole tensors."""
        self._held: list[tuple[int, Tensor]] = []

    def after_step(self, sums_of: SumsOfMoment | None = None, *, part: int | None = None) -> None:
        """An update was made; the numbers that it leaves are those that the next one should begin with.

        Args:
            sums_of: Has the sums of what others read at this moment; None where nobody else does.
            part: Which part of each tensor is read; None for all.
        """
        self._part = part
        self._left = self._sums(sums_of)

    def before_step(self, update: int, sums_of: SumsOfMoment | None = None) -> None:
        """The optimizer is about to step; arguments as in `after_step`."""
        left, self._left = self._left, None
        now = None if left is None else self._sums(sums_of)
        if left and now and {at: of.shape for at, of in now.items()} == {at: of.shape for at, of in left.items()}:
            moved = [(of != left[at]).sum().float() for at, of in now.items()]
            device = moved[0].device
            self._held.append(
                (update, torch.stack([of.to(device, non_blocking=True) for of in moved]).sum().reshape(1))
            )

    def _sums(self, sums_of: SumsOfMoment | None) -> _Sums:
        by_device: dict[torch.device, list[Tensor]] = {}
        for tensor in self._read():
            by_device.setdefault(tensor.device, []).append(tensor.detach())  # a shard itself has no shape
        with torch.no_grad():
            if sums_of is not None:
                return {device: torch.stack(sums_of.of(tensors, self._part)) for device, tensors in by_device.items()}
            part = self._part
            return {
                device: sums_in_any_order(tensors if part is None else [part_of(tensor, part) for tensor in tensors])
                for device, tensors in by_device.items()
            }

    def work_up(self) -> list[tuple[int, Tensor]]:
        """How many tensors had changed before each update since the last call, (1,) float32."""
        held, self._held = self._held, []
        return held
