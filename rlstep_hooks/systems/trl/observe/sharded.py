"""Whether rows can go through a trainer's model beside its own forwards, where its weights are shared out among processes."""

from __future__ import annotations

from typing import Any

from rlstep_hooks.observe.forward_beside import is_sharded_by_modules, why_not_beside
from rlstep_hooks.observe.scored_rows import SHARED_OUT
from rlstep_hooks.systems.trl.observe.facts import forward_noise
from rlstep_hooks.systems.trl.observe.ranks import other_parallelism


def why_no_rows_beside(trainer: Any, model: Any) -> str:
    """Why no row can go through a model of this trainer beside its forwards; empty where rows can.

    Args:
        trainer: A GRPOTrainer or RLOOTrainer whose training begins.
        model: The policy or its reference, unwrapped.
    """
    if other_parallelism(trainer.accelerator) or not is_sharded_by_modules(model):
        return SHARED_OUT
    if model is not getattr(trainer, "ref_model", None) and (noise := forward_noise(trainer)):
        return f"{noise} makes each forward in training mode another one"
    return why_not_beside(model)
