"""How accelerate has spread the trainer's model over its processes."""

from __future__ import annotations

from typing import Any

from rlstep_hooks.observe.sharding.places import Reduction
from rlstep_hooks.observe.sharding.replicated import replicated


def reduction_of(trainer: Any) -> Reduction:
    """How the gradients of the trainer's model are reduced, once training has begun and the model is wrapped (`model_wrapped`)."""
    others = _other_parallelism(trainer.accelerator)
    if others:
        return Reduction([], hidden=f"gradients of {others} parallelism are not the mean over all ranks")
    if getattr(trainer, "is_fsdp_enabled", False):
        return Reduction([], hidden="gradients of FSDP are not followed")
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    return replicated(model.named_parameters(), trainer.model_wrapped)


def _other_parallelism(accelerator: Any) -> str:
    """By what else than data accelerate spreads work over ranks, in a word or two; empty where by data alone
    (parallelism_config.py 1.15.0: `tp_size`, `cp_size`, `sp_size`; there is none before 1.10)."""
    config = getattr(accelerator, "parallelism_config", None)
    kinds = {"tensor": "tp_size", "context": "cp_size", "sequence": "sp_size"}
    return " and ".join(kind for kind, size in kinds.items() if (getattr(config, size, 1) or 1) > 1)
