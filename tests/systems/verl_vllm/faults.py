"""Faults of syncs of weights to vLLM, on the trainer's side of the engine. verl imports this module in every process."""

from __future__ import annotations

import itertools
from typing import Any

import wrapt

MODULE = __name__
HALF, COARSE, OTHERS = 1, 2, 3
"""Syncs, counted from 0, in which half of the tensors goes, all of them through bfloat16, and all of them a little off."""


def _changed(number: int, weights: Any) -> Any:
    for place, (name, tensor) in enumerate(weights):
        if number == HALF and place % 2:
            continue
        if number == COARSE:
            tensor = tensor.bfloat16()
        if number == OTHERS:
            tensor = tensor + 1e-3
        yield name, tensor


def _install(module: Any) -> None:
    numbers = itertools.count()

    def update_weights(wrapped: Any, adapter: Any, args: Any, kwargs: Any) -> Any:
        weights = args[0] if args else kwargs.pop("weights")
        return wrapped(_changed(next(numbers), weights), *args[1:], **kwargs)

    wrapt.wrap_function_wrapper(module, "ServerAdapter.update_weights", update_weights)


wrapt.when_imported("verl.workers.rollout.vllm_rollout.vllm_rollout")(_install)
