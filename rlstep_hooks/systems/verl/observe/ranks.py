"""How verl has spread the model of an engine over its ranks."""

from __future__ import annotations

from typing import Any

from torch.distributed.fsdp import FullyShardedDataParallel

from rlstep_hooks.observe.replicas import Replicated
from rlstep_hooks.observe.sharding.dtensors import of_dtensors
from rlstep_hooks.observe.sharding.flat_shards import of_flat_shards
from rlstep_hooks.observe.sharding.places import Reduction
from rlstep_hooks.observe.sharding.replicated import replicated
from rlstep_hooks.observe.shards import plain_name

USUAL_PASSES = 16
"""Micro-batches of an update, which decide of how many tensors gradients are read. All ranks must read the same tensors, and how many
micro-batches an update has is known to none of them before it has begun."""

SEQUENCES = (
    "of the ranks that share sequences (Ulysses) one keeps a record, and gradients are the mean over all of them"
)


def ranks_of(engine: Any) -> int:
    """Ranks over which gradients of an engine's model are reduced, whether or not each of them keeps a record
    (workers/engine/fsdp/transformer_impl.py 0.9.1:239, 651: the mesh that shards has all of them)."""
    return int(engine.get_data_parallel_size()) * int(getattr(engine, "ulysses_sequence_parallel_size", 1) or 1)


def reduction_of(engine: Any) -> Reduction:
    """How the gradients of an engine's model are reduced, once it is sharded.

    The loss of each rank is multiplied by the number of ranks where it is divided by the samples or tokens of all of them
    (trainer/ppo/core_algos.py 0.9.1 `agg_loss`), so that FSDP's mean makes it the loss of the mini-batch. Of gradients, the mean is
    what is documented (transformer_impl.py 0.9.1:437, 465).
    """
    if int(getattr(engine, "ulysses_sequence_parallel_size", 1) or 1) > 1:
        return Reduction([], hidden=SEQUENCES)
    if isinstance(engine.module, FullyShardedDataParallel):
        return of_flat_shards(engine.module)
    if _has_dtensors(engine.module):
        return of_dtensors(engine.module)
    if _is_fsdp(engine):  # nobody has sharded the model, and its gradients are to be the mean all the same
        return replicated((plain_name(name), of) for name, of in engine.module.named_parameters())
    return Reduction([], hidden=f"{type(engine).__name__} shards its model neither with FSDP1 nor with FSDP2")


def _has_dtensors(model: Any) -> bool:
    return any(hasattr(parameter, "to_local") for parameter in model.parameters())


def _is_fsdp(engine: Any) -> bool:
    """Whether an engine is one of those that shard with FSDP1 or FSDP2."""
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

    return isinstance(engine, FSDPEngine)


def replicas_of(engine: Any) -> list[Replicated]:
    """What every rank should hold alike: the buffers, which verl sends from rank 0 when it shards a model (utils/fsdp_utils.py 0.9.1
    `fsdp2_load_full_state_dict`; FSDP1 with `sync_module_states`). Weights, adapters among them, are shards; where nobody has sharded
    the model, each rank holds them all."""
    model = engine.module
    buffers = Replicated("buffers", [(plain_name(name), of) for name, of in model.named_buffers() if not of.is_meta])
    if isinstance(model, FullyShardedDataParallel) or _has_dtensors(model) or not _is_fsdp(engine):
        return [buffers]
    weights = [(plain_name(name), of) for name, of in model.named_parameters() if of.requires_grad]
    return [Replicated("weights", weights), buffers]
