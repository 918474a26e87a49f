"""Parameters that FSDP2 keeps on the CPU, without pinned memory.

verl builds the engine of the reference model with `CPUOffloadPolicy(pin_memory=True)`
(workers/engine/fsdp/transformer_impl.py:462). Pinning memory needs an accelerator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType


def install(module: ModuleType) -> None:
    """Replace the name in the engine's module; torch itself stays as it is."""
    policy = module.CPUOffloadPolicy

    def unpinned(*_arguments: Any, **_keywords: Any) -> Any:
        return policy(pin_memory=False)

    module.CPUOffloadPolicy = unpinned  # type: ignore[attr-defined]  # of a module that is known by its name only
