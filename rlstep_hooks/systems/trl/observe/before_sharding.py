"""The weights of a rank before FSDP cuts them: each rank then keeps a part of its own copy, and nobody has another to compare it with.

Where FSDP gives all ranks what rank 0 loaded (accelerate 1.4 to 1.15: `cpu_ram_efficient_loading`, and `sync_module_states` of FSDP1,
utils/fsdp_utils.py `fsdp2_prepare_model` and accelerator.py `prepare_model`), the copies of the other ranks are not used, and not read.
transformers shards the model within `train`, before it tells callbacks that training begins.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from rlstep_hooks.observe.replicas import Replicated, ReplicaWatch
from rlstep_hooks.observe.shards import plain_name

_READ: WeakKeyDictionary[Any, ReplicaWatch] = WeakKeyDictionary()
"""What was read of the model of each trainer whose call of `train` has begun."""


def read_whole_model(trainer: Any, *, resumes: bool) -> None:
    """Read the model of a trainer whose call of `train` begins.

    Args:
        trainer: A trainer whose model is still whole on each rank, if training shards it.
        resumes: Whether a checkpoint is loaded over these weights.
    """
    accelerator = trainer.accelerator
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is None or accelerator.num_processes < 2 or resumes:
        return
    from_rank_0 = getattr(plugin, "cpu_ram_efficient_loading", False) or getattr(plugin, "sync_module_states", False)
    if from_rank_0:
        return
    named = [(plain_name(name), of) for name, of in trainer.model.named_parameters()]
    if any(hasattr(of, "to_local") or of.is_meta for _, of in named):
        return  # sharded by an earlier call, or nowhere yet
    watch = ReplicaWatch(
        [
            Replicated("weights", [(name, of) for name, of in named if of.requires_grad]),
            Replicated("frozen weights", [(name, of) for name, of in named if not of.requires_grad]),
        ]
    )
    watch.look(0, "begin")
    _READ[trainer] = watch


def taken(trainer: Any) -> ReplicaWatch | None:
    """What was read of the trainer's model before it was cut; once. None where nothing was."""
    return _READ.pop(trainer, None)
