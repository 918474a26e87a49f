"""The part that this process holds of a parameter which its ranks share: of FSDP2's DTensors, and of parameters that ZeRO-3 cuts.

Nothing is gathered. Verified with torch 2.13.0 and DeepSpeed 0.19.8 (tests/systems/trl_vllm/test_gathered.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from rlstep_hooks.observe.sharding.dtensors import ShardedTensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class OwnPart(NamedTuple):
    """What this process holds of a parameter."""

    numbers: Tensor
    """Its numbers, in any shape."""
    place_of: Callable[[int], int | None]
    """Gives the flat place in `numbers` of an element of the whole parameter; None where another process has it."""


def own_part(parameter: Any) -> OwnPart | None:
    """The part of a parameter; None where it is whole here, or cut in a way that is not known."""
    if hasattr(parameter, "full_tensor"):
        return _of_dtensor(parameter)
    if getattr(parameter, "ds_tensor", None) is not None:
        return _of_zero_3(parameter)
    return None


def _of_dtensor(parameter: Any) -> OwnPart:
    shard = ShardedTensor("", parameter, [], [])

    def place_of(element: int) -> int | None:
        place = shard.place_of(element)
        return None if place is None else place.at

    return OwnPart(parameter.to_local(), place_of)


def _of_zero_3(parameter: Any) -> OwnPart | None:
    """Ranks have parts of equal size, one after the other, and what is behind the last element is padding (runtime/zero/
    partition_parameters.py 0.19.8:1817, 1852). `ds_secondary_tensor`, of ZeRO++, is not read."""
    held, group = parameter.ds_tensor, parameter.ds_process_group
    # Otherwise it is on NVMe, or cut within a smaller group, as MiCS does.
    if held.numel() != -(-parameter.ds_numel // torch.distributed.get_world_size(group)):
        return None
    first = torch.distributed.get_rank(group) * held.numel()

    def place_of(element: int) -> int | None:
        return element - first if first <= element < first + held.numel() else None

    return OwnPart(held, place_of)
