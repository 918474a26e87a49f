"""One gloo backend for a device that is named once.

verl asks torch for `cpu:gloo,<device>:<backend>` (utils/distributed.py:87). With the device "cpu" that names the same
device twice, which torch refuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def _with_gloo(wrapped: Callable[..., None], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    return wrapped(*args, **{"backend": "cpu:gloo", **kwargs})


def install(module: ModuleType) -> None:
    """Give `initialize_global_process_group_ray` its backend, before others import it by name."""
    wrapt.wrap_function_wrapper(module, "initialize_global_process_group_ray", _with_gloo)
