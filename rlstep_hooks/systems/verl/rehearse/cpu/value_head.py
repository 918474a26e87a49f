"""A critic without flash attention.

verl loads value models with `attn_implementation="flash_attention_2"` and no key to change that (utils/model.py:645).
It reports the failure as "not a value head model, please install trl".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def _eager(wrapped: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs.get("attn_implementation") == "flash_attention_2":
        kwargs = kwargs | {"attn_implementation": "eager"}
    return wrapped(*args, **kwargs)


def install(module: ModuleType) -> None:
    """Load value models with eager attention."""
    from transformers import AutoModelForTokenClassification

    wrapt.wrap_function_wrapper(AutoModelForTokenClassification, "from_pretrained", _eager)
