"""How accelerate has spread the trainer's model over its processes."""

from __future__ import annotations

from typing import Any

from rlstep_hooks.observe.sharding.places import Reduction
from rlstep_hooks.observe.sharding.replicated import replicated


def reduction_of(trainer: Any) -> Reduction:
    """How the gradients of the trainer's model are reduced, once training has begun and the model is wrapped (`model_wrapped`)."""
    if getattr(trainer, "is_fsdp_enabled", False):
        return Reduction([], hidden="gradients of FSDP are not followed")
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    return replicated(model.named_parameters(), trainer.model_wrapped)
