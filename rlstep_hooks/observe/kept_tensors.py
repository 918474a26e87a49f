"""Tensors that nothing should write to while a model is trained: its frozen weights, and what its positions are computed from.

What they are at first is read once, and compared now and then: a sum of the bits of each, which stays on the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.bits import part_of, sums_of_bits
from rlstep_hooks.observe.shards import local_part
from rlstep_hooks.record.cadence import PARTS, READ_WHOLE
from rlstep_hooks.record.events import UpdateValues

if TYPE_CHECKING:
    from collections.abc import Iterator

MOVING_ROTARY = ("dynamic", "longrope")
"""Kinds of rotary embeddings whose frequencies follow the length of the input (transformers 5.23.0 modeling_rope_utils.py,
`dynamic_rope_update`)."""


class _Kept(msgspec.Struct, frozen=True):
    """Where a tensor stands that training leaves as it is; another one may be put into its place."""

    name: str
    holder: dict[str, Any]
    """The parameters or the buffers of its module."""
    key: str
    shard: bool
    """Whether this process holds a part of it. FSDP2 puts the whole tensor into its place for a forward."""

    def now(self) -> Tensor | None:
        """What this process holds of the tensor now; None where it is trained, or whole for the time of a forward."""
        tensor = self.holder.get(self.key)
        if tensor is None or tensor.requires_grad or hasattr(tensor, "to_local") != self.shard:
            return None
        part = getattr(tensor, "ds_tensor", None)
        if part is None:
            return local_part(tensor.detach())
        # Of a weight that ZeRO-3 has cut; where it is swapped to a disk, something else stands in its place
        # (runtime/zero/partition_parameters.py 0.19.8 `PartitionedParamStatus`).
        return part.detach() if part.status.name == "AVAILABLE" else None


def kept_tensors(model: Any) -> Iterator[_Kept]:
    """Give the tensors of a model that training leaves as they are: frozen weights and rotary frequencies.

    Other buffers are left out, because running means and caches are written by the forward itself. Of a DTensor, and of a weight
    that ZeRO-3 has cut, the part is given that this process holds.
    """
    for prefix, module in model.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is not None and not parameter.requires_grad:
                yield _Kept(f"{prefix}.{key}", module._parameters, key, hasattr(parameter, "to_local"))
        if "inv_freq" in module._buffers and getattr(module, "rope_type", "default") not in MOVING_ROTARY:
            yield _Kept(f"{prefix}.inv_freq", module._buffers, "inv_freq", shard=False)


class KeptTensors:
    """Compares the tensors of one model that nothing should write to.

    Args:
        model: The model, as it is when training begins.
    """

    def __init__(self, model: Any) -> None:
        found = [
            (kept, tensor) for kept in kept_tensors(model) if (tensor := kept.now()) is not None and tensor.numel()
        ]
        found = [of for of in found if of[1].is_floating_point() and of[1].device == found[0][1].device]
        self._kept = [kept for kept, _ in found]
        tensors = [tensor for _, tensor in found]
        self._large = sum(tensor.numel() for tensor in tensors) > READ_WHOLE
        self._first = [self._sums(tensors, part) for part in range(PARTS if self._large else 1)] if tensors else []
        """The sums of each part of all tensors, as they were at first."""
        self._held: list[tuple[int, Tensor]] = []

    def look(self, update: int, cycle: int) -> None:
        """Compare the tensors before an update.

        Args:
            update: The update.
            cycle: The cycle of rollouts, which says which part of a large model is read.
        """
        if not self._first:
            return
        part = cycle % len(self._first)
        first = self._first[part]
        tensors = [kept.now() for kept in self._kept]
        there = [tensor for tensor in tensors if tensor is not None and tensor.device == first.device]
        if len(there) == len(tensors):  # where one is trained by now, or was brought to another device, nothing is said
            self._held.append((update, self._sums(there, part) != first))

    def _sums(self, tensors: list[Tensor], part: int) -> Tensor:
        return torch.stack(sums_of_bits([part_of(tensor, part) for tensor in tensors] if self._large else tensors))

    def work_up(self) -> list[tuple[KeptSource, Tensor]]:
        """The numbers of all looks since the last call: of each tensor whether it is another one, float32."""
        held, self._held = self._held, []
        return [(KeptSource(update, tuple(kept.name for kept in self._kept)), moved.float()) for update, moved in held]


class KeptSource(msgspec.Struct, frozen=True):
    """What a vector means: of each tensor whether it has other numbers than at first."""

    of: ClassVar = UpdateValues
    update: int
    names: tuple[str, ...]

    def values(self, numbers: list[float]) -> dict[int, dict[str, Any]]:
        """The vector's numbers, as fields of `UpdateValues`."""
        moved = [name for name, number in zip(self.names, numbers, strict=True) if number]
        return {self.update: {"kept_moved": len(moved), "kept_tensor": moved[0] if moved else ""}}
