"""What stands in for CUDA, so that megatron-core 0.16.1 trains unmodified on a CPU over gloo.

Tensors that it asks of "cuda" are made on the CPU; tensors call themselves CUDA's where its optimizers ask for their type
(optimizer/distrib_optimizer.py:360, 429); the marks for NVTX and the random states of CUDA are left out, of which a model without
dropout draws nothing.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class CpuForCuda(TorchFunctionMode):
    """Makes on the CPU what is asked of CUDA."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Call the function with other devices."""
        given = dict(kwargs or {})
        if str(given.get("device", "")).startswith("cuda"):
            given["device"] = "cpu"
        if func is torch.Tensor.cuda:
            return args[0]
        result = func(*args, **given)
        return (
            result.replace("torch.", "torch.cuda.") if func is torch.Tensor.type and isinstance(result, str) else result
        )


def stand_in() -> None:
    """Put all of it in place, for the rest of this process. Call it before megatron-core is imported."""
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
    torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *given: None
    CpuForCuda().__enter__()
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    CudaRNGStatesTracker.fork = lambda self, name="": contextlib.nullcontext()
