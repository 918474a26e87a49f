"""What trainers with engines in other processes need on a CPU: a way for the weights, and copies of them that are copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import wrapt

from rlstep_hooks.systems.verl.rehearse.cpu.engine import BACKEND

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def install_backend(module: ModuleType) -> None:
    """`verl.checkpoint_engine.base`: make the backend known."""
    from rlstep_hooks.systems.verl.rehearse.cpu.weight_transfer import CpuCheckpointEngine

    module.CheckpointEngineRegistry.register(BACKEND)(CpuCheckpointEngine)


def install_copies(module: ModuleType) -> None:
    """`verl.utils.fsdp_utils`: have saved weights be copies.

    verl saves the shards of FSDP2 with `.cpu()` (fsdp_utils.py:1180, 0.9.1). That copies from an accelerator; of a tensor on the CPU it
    is the tensor itself, and the weights of the beginning of a step would go on with the training.
    """
    wrapt.wrap_function_wrapper(module, "fsdp2_sharded_save_to_cpu", _copied)


def _copied(wrapped: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    state, spec = wrapped(*args, **kwargs)
    return {name: (tensor.clone(), own) for name, (tensor, own) in state.items()}, spec
