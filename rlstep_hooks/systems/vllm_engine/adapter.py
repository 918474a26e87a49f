"""Whether an adapter that vLLM was given is in the layers that compute.

Read in vLLM 0.32, lora/model_manager.py: `modules` are the layers that take adapters, `_get_lora_layer_weights` finds a layer's
part of an adapter by name and gives None without a word if there is none, and `activate_adapter` copies the parts into the layers'
own tensors (`lora_b_stacked`, one row for each adapter in use).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator


class AdapterState(msgspec.Struct, frozen=True):
    """What became of an adapter."""

    parts: int
    """Layers that the adapter changes."""
    matched: int
    """Layers of the engine that found their part in it. Joined layers, such as q, k and v, are one."""
    empty: int
    """Layers among these whose own tensors are zero although their part is not."""


def state_of(worker: Any, identity: int) -> AdapterState:
    """Look at an adapter in a worker of vLLM. Waits for the device.

    Args:
        worker: The worker.
        identity: `lora_int_id` of the request by which the adapter was delivered.
    """
    manager = worker.model_runner.lora_manager._adapter_manager
    adapter = manager.get_adapter(identity)
    slots = list(manager.lora_index_to_id)
    slot = slots.index(identity) if identity in slots else None
    matched = empty = 0
    for name, layer in manager.modules.items():
        part = manager._get_lora_layer_weights(adapter, name)
        if part is None:
            continue
        matched += 1
        own = getattr(layer, "lora_b_stacked", None)
        if slot is not None and own is not None and _any(part.lora_b):
            empty += not any(bool(stacked[slot].any()) for stacked in own)
    return AdapterState(len(adapter.loras), matched, empty)


def _any(tensors: Any) -> bool:
    return any(bool(tensor.any()) for tensor in _each(tensors))


def _each(tensors: Any) -> Iterator[Any]:
    if isinstance(tensors, list | tuple):
        for tensor in tensors:
            yield from _each(tensor)
    elif tensors is not None:
        yield tensors
