"""Weights of vLLM's CPU engine that can be updated.

After loading, vLLM repacks linear weights for the CPU and deletes the originals (model_executor/layers/utils.py
dispatch_cpu_unquantized_gemm, 0.32), so the next weight sync finds none to load into.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import wrapt

if TYPE_CHECKING:
    from types import ModuleType

MODULES = (
    "vllm.model_executor.layers.utils",
    "vllm.model_executor.layers.linear",
    "vllm.model_executor.layers.vocab_parallel_embedding",
)
"""Where the function is, and where it was imported to by name."""


def _keep_weights(layer: Any, remove_weight: bool = False) -> None:
    layer.cpu_linear = lambda x, weight, bias: torch.nn.functional.linear(x, layer.weight, bias)


def install() -> None:
    """Multiply with the weights as they are."""

    def replace(module: ModuleType) -> None:
        if hasattr(module, "dispatch_cpu_unquantized_gemm"):
            module.dispatch_cpu_unquantized_gemm = _keep_weights

    for name in MODULES:
        wrapt.when_imported(name)(replace)
