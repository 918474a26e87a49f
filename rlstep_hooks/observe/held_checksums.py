"""Checksums of all weights of a model, and of all that its optimizer keeps, as far as this process holds them."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlstep_hooks.observe.bits import sums_of_bits
from rlstep_hooks.observe.shards import local_part

if TYPE_CHECKING:
    from collections.abc import Iterable


def checksum_of_all(tensors: Iterable[Any]) -> int:
    """A checksum of tensors in their order, bit for bit, of DTensors of the local parts. Waits for their devices."""
    sums = sums_of_bits([local_part(tensor.detach()) for tensor in tensors])
    by_device: dict[torch.device, list[Tensor]] = {}
    for of in sums:
        by_device.setdefault(of.device, []).append(of)
    checksum = 0
    for of_device in by_device.values():
        checksum = zlib.crc32(torch.stack(of_device).cpu().numpy().tobytes(), checksum)
    return checksum


def stepped_by(optimizer: Any) -> list[Tensor]:
    """The tensors that a torch optimizer steps, in their order. Those of ZeRO-3 stand in its groups while they are stepped only, and
    always in its state (deepspeed 0.19.8 runtime/zero/stage3.py `_optimizer_step`)."""
    grouped = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    known = {id(tensor) for tensor in grouped}
    return grouped + [tensor for tensor in optimizer.state if isinstance(tensor, Tensor) and id(tensor) not in known]


def kept_of(optimizer: Any) -> list[Tensor]:
    """All tensors that a torch optimizer keeps of those that it steps, in their order."""
    states = [optimizer.state.get(tensor, {}) for tensor in stepped_by(optimizer)]
    return [state[name] for state in states for name in sorted(state) if isinstance(state[name], Tensor)]
