"""How accelerate has spread the trainer's model over its processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from rlstep_hooks.observe.replicas import Replicated
from rlstep_hooks.observe.sharding.dtensors import of_dtensors
from rlstep_hooks.observe.sharding.flat_shards import of_flat_shards
from rlstep_hooks.observe.sharding.places import Reduction
from rlstep_hooks.observe.sharding.replicated import replicated
from rlstep_hooks.observe.sharding.zero import zero_replicas
from rlstep_hooks.observe.shards import plain_name
from rlstep_hooks.systems.trl.observe.engine_steps import engine_of

if TYPE_CHECKING:
    from collections.abc import Iterable


def reduction_of(trainer: Any) -> Reduction:
    """How the gradients of the trainer's model are reduced, once training has begun and the model is wrapped (`model_wrapped`)."""
    others = other_parallelism(trainer.accelerator)
    if others:
        return Reduction([], hidden=f"gradients of {others} parallelism are not the mean over all ranks")
    if getattr(trainer, "is_fsdp_enabled", False):
        flat = isinstance(trainer.model_wrapped, FullyShardedDataParallel)
        return of_flat_shards(trainer.model_wrapped) if flat else of_dtensors(trainer.model_wrapped)
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    return replicated(model.named_parameters(), trainer.model_wrapped)


def other_parallelism(accelerator: Any) -> str:
    """What accelerate spreads over ranks besides data, in a word or two; empty where it spreads data alone (parallelism_config.py
    1.15.0: `tp_size`, `cp_size`, `sp_size`; there is none before 1.10)."""
    config = getattr(accelerator, "parallelism_config", None)
    kinds = {"tensor": "tp_size", "context": "cp_size", "sequence": "sp_size"}
    return " and ".join(kind for kind, size in kinds.items() if (getattr(config, size, 1) or 1) > 1)


def replicas_of(trainer: Any) -> list[Replicated]:
    """What every rank should hold alike, once the model is wrapped.

    DistributedDataParallel copies all parameters and buffers from rank 0 when it wraps a model (torch/nn/parallel/distributed.py
    2.13.0:1064), and the reference is loaded from one place. FSDP2 leaves plain tensors to whoever adds them: transformers keeps
    adapters alike that come after the sharding (trainer.py 5.23.0:2622). FSDP1's parameters are parts of a flat one.
    """
    wrapped = trainer.model_wrapped
    if isinstance(wrapped, DistributedDataParallel):
        model, left_out = wrapped.module, set(wrapped.parameters_to_ignore)
        named = [of for of in model.named_parameters() if of[0] not in left_out]
        buffers = [of for of in model.named_buffers() if of[0] not in left_out]
        others = _of_reference(trainer)
    elif (engine := engine_of(trainer)) is not None:
        return [*zero_replicas(engine), Replicated("reference", _whole(_of_reference(trainer)), often=False)]
    elif getattr(trainer, "is_fsdp_enabled", False):
        state = trainer.accelerator.state
        second = getattr(state.fsdp_plugin, "fsdp_version", 1) == 2
        named, others = list(trainer.model.named_parameters()) if second else [], []
        buffers = list(trainer.model.named_buffers())
    else:
        return []
    return [
        Replicated("weights", _whole(of for of in named if of[1].requires_grad)),
        Replicated("frozen weights", _whole(of for of in named if not of[1].requires_grad), often=False),
        Replicated("buffers", _whole(buffers)),
        Replicated("reference", _whole(others), often=False),
    ]


def _of_reference(trainer: Any) -> list[tuple[str, Any]]:
    """The parameters of a reference model of its own, in the wrapper that the trainer calls."""
    reference = getattr(trainer, "ref_model", None)
    inside = getattr(reference, "module", reference)
    if inside is None or inside is getattr(trainer.model_wrapped, "module", trainer.model_wrapped):
        return []
    return list(inside.named_parameters())


def _whole(named: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Tensors that this rank holds whole, with the names of the unwrapped model: no DTensors, and none that ZeRO-3 has cut."""
    return [
        (plain_name(name), of)
        for name, of in named
        if not (hasattr(of, "to_local") or hasattr(of, "ds_id") or of.is_meta)
    ]
