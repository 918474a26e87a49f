"""A mistake of the forward that computes log-probs, from one rollout on: in the refresh and in the loss alike, so that the ratio is 1.

Every process of a launch imports this module (`RLSTEP_TEST_MODULE`). `RLSTEP_TEST_FORWARD=positions_of_completion@1` names the mistake
and the first rollout (from 0) that it is made in; later rollouts have it too.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

import wrapt

from tests.systems.openrlhf.faults import WORKER

MODULE = __name__
VARIABLE = "RLSTEP_TEST_FORWARD"
LAUNCHER = "openrlhf.trainer.ray.launcher"
MODELS = "openrlhf.models.actor"

_refreshes = itertools.count()
_now = [-1]


def _batch(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    method = kwargs.get("method_name", args[0] if args else "")
    if method == "forward" and type(worker).__name__ == "PolicyModelActor":
        _now[0] = next(_refreshes)
    return wrapped(*args, **kwargs)


def _forward(wrapped: Any, actor: Any, args: Any, kwargs: Any) -> Any:
    """Positions begin again at the completion."""
    name, _, at = os.environ[VARIABLE].partition("@")
    if name != "positions_of_completion" or _now[0] < int(at):
        return wrapped(*args, **kwargs)
    mask = kwargs.get("action_mask", args[1] if len(args) > 1 else None)

    def moved(module: Any, given: Any, named: Any) -> Any:
        positions = named["position_ids"].clone()
        for row, counted in enumerate(mask):
            first = int(counted.bool().nonzero()[0]) + 1
            positions[row, first:] -= first
        return given, {**named, "position_ids": positions.clamp(min=0)}

    handle = actor.model.register_forward_pre_hook(moved, with_kwargs=True)
    try:
        return wrapped(*args, **kwargs)
    finally:
        handle.remove()


# In workers only: the driver would send a method that has changed by value, past the audit's own (`tests.systems.openrlhf.faults`).
if os.environ.get(VARIABLE) and WORKER in os.environ:
    wrapt.register_post_import_hook(
        lambda module: wrapt.wrap_function_wrapper(module, "BaseModelActor.execute_batch", _batch), LAUNCHER
    )
    wrapt.register_post_import_hook(
        lambda module: wrapt.wrap_function_wrapper(module, "Actor.forward", _forward), MODELS
    )
