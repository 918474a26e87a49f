"""The gradients of a model on their way into the flat weights that DeepSpeed steps on (ZeRO 1 and 2), in one process.

DeepSpeed takes each gradient as autograd adds it up, keeps it in buffers and brings it to the part of a flat tensor that belongs to its
parameter (DeepSpeed 0.19.6, utils/tensor_fragment.py `tensor_fragment`, runtime/zero/stage_1_and_2.py `step`). Among several processes
what arrives here is reduced with what arrives there, so nothing is followed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.gradient_watch import GradientWatch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from rlstep_hooks.observe.guard import Guard


def gradients_of(named: Iterable[tuple[str, Any]], flat: Any, guard: Guard) -> GradientWatch | None:
    """Follows the parameters whose weights a flat tensor holds; None where this process is one of several, or holds none of them on
    the same device.

    Args:
        named: The model's parameters.
        flat: The tensor that the optimizer steps on.
        guard: Contains errors of the hooks.
    """
    if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        return None
    owned = [(name, parameter) for name, parameter in named if _is_part(parameter, flat)]

    def used(parameter: Any) -> Tensor | None:
        if flat.grad is None:
            return None
        address = parameter._hp_mapping.hp_fragment_address
        part: Tensor = flat.grad.detach().narrow(0, address.start, address.numel)
        return part

    return GradientWatch(owned, guard, used) if owned else None


def _is_part(parameter: Any, flat: Any) -> bool:
    mapping = getattr(parameter, "_hp_mapping", None)
    # An optimizer that is offloaded steps on another device, and comparing would wait for this one.
    if mapping is None or mapping.hp_fragment_address.numel != parameter.numel() or parameter.device != flat.device:
        return False
    return bool(mapping.hp_fragment.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr())
