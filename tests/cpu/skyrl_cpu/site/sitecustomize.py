"""Loaded by every Python process of a run, before its own code: answers where SkyRL names `cuda`.

skyrl 0.3.0, below skyrl/backends/skyrl_train: workers/worker.py (process group, device mesh, current device),
distributed/fsdp_strategy.py (`set_device`), distributed/fsdp_utils.py (device mesh, current device, `cuda()`). No file of SkyRL is
changed.
"""

from __future__ import annotations

import sys
import typing
from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def _on_the_cpu(torch: ModuleType) -> None:
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.set_device = lambda device: None
    torch.Tensor.cuda = lambda tensor, *given, **named: tensor


def _with_gloo(wrapped: Callable[..., Any], instance: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    # "cpu:gloo,cuda:nccl": the first alone.
    return wrapped(*given, **(named | {"backend": "cpu:gloo"}))


def _of_the_cpu(wrapped: Callable[..., Any], instance: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    return wrapped("cpu", *given[1:], **named)


def _in_processes(module: ModuleType) -> None:
    wrapt.wrap_function_wrapper(module, "init_process_group", _with_gloo)


def _in_meshes(module: ModuleType) -> None:
    wrapt.wrap_function_wrapper(module, "init_device_mesh", _of_the_cpu)


def _typed(module: ModuleType) -> None:
    """On Python 3.11, which SkyRL admits, pydantic refuses typing's own TypedDict, of which SkyRL makes models
    (skyrl/tinker/types.py)."""
    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict  # type: ignore[misc]


if sys.version_info < (3, 12):
    wrapt.register_post_import_hook(_typed, "skyrl")
wrapt.register_post_import_hook(_on_the_cpu, "torch")
wrapt.register_post_import_hook(_in_processes, "torch.distributed")
wrapt.register_post_import_hook(_in_meshes, "torch.distributed.device_mesh")
