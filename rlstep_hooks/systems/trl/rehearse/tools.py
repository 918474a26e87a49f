"""The user's tools in TRL's GRPOTrainer, called once each. Tools of an environment, which it must be reset for, are not."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import TYPE_CHECKING, Any

from rlstep_hooks.rehearse.tools import answered, made_arguments, raised

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_LONGEST = 20
"""Seconds that a tool has for its answer."""


def probe(tools: Iterable[Callable[..., Any]]) -> None:
    """Call each tool with arguments that fit the schema which the model is shown.

    Args:
        tools: The argument `tools` of the trainer, which has taken them.
    """
    from transformers.utils import get_json_schema

    for tool in tools:
        function = get_json_schema(tool)["function"]
        arguments = made_arguments(function.get("parameters") or {})
        found = _called(tool, arguments)
        if isinstance(found, Exception):
            raised(function["name"], arguments, found)
        else:
            answered(function["name"], arguments, found)


def _called(tool: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """What the tool gives, or raises; on a thread, because it may wait for something that is not here."""
    found: list[Any] = []

    def call() -> None:
        try:
            answer = tool(**arguments)
            found.append(asyncio.run(answer) if inspect.iscoroutine(answer) else answer)
        except Exception as error:  # noqa: BLE001 - of a call that no model made
            found.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(_LONGEST)
    return found[0] if found else TimeoutError(f"no answer within {_LONGEST} s")
