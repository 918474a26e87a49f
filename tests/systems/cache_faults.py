"""A prefix cache that is not emptied for one sync of weights, in verl and OpenRLHF. Every process of a launch imports this module."""

from __future__ import annotations

from typing import Any

import wrapt

MODULE = __name__
KEPT = 1
"""The sync, counted from 0, after which the cache keeps what it has."""


def _install(module: Any) -> None:
    resets: list[int] = []

    async def reset_prefix_cache(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        resets.append(len(resets))
        return True if resets[-1] == KEPT else await wrapped(*args, **kwargs)

    wrapt.wrap_function_wrapper(module, "AsyncLLM.reset_prefix_cache", reset_prefix_cache)


wrapt.when_imported("vllm.v1.engine.async_llm")(_install)
