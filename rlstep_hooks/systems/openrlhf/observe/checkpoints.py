"""What a trainer of OpenRLHF holds of weights and of the optimizer's moments, whether its files have it, and which checkpoint it began
with."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.checkpoints import State
from rlstep_hooks.observe.held_checksums import checksum_of_all, kept_of
from rlstep_hooks.observe.saved_files import read_file, weights_in, weights_in_files
from rlstep_hooks.observe.sharding.saved_zero import LATEST
from rlstep_hooks.systems.openrlhf.observe.fingerprint import label_of, sums_of, total

if TYPE_CHECKING:
    from rlstep_hooks.observe.saved_files import Found


def state_of(engine: Any) -> State:
    """The state of a DeepSpeed engine. Waits for its device, which happens at the start and where a checkpoint is written anyway."""
    return State(weights_of(engine.module), moments=checksum_of_all(kept_of(engine.basic_optimizer)))


def weights_of(model: Any) -> int:
    """The label of the weights that this process holds: the whole model, or its part of each parameter (ZeRO-3)."""
    held = (getattr(parameter, "ds_tensor", parameter).detach() for parameter in model.parameters())
    return label_of(total(sums_of(held)))


def resumed_from(args: Any, role: str) -> str | None:
    """The checkpoint that a role begins with (ppo_actor.py:574, ppo_critic.py:241); None if it begins anew."""
    folder = os.path.join(args.ckpt.path, f"_{'actor' if role == 'policy' else role}")
    latest = os.path.join(folder, LATEST)
    if not args.ckpt.load_enable or not os.path.exists(latest):
        return None
    with open(latest) as file:
        return os.path.join(folder, file.read().strip())


def weights_saved(engine: Any, folder: str) -> Found:
    """Whether DeepSpeed's checkpoint in a folder has the weights that the engine holds; "unknown" where ZeRO-3 has cut them, and in the
    processes that write none (runtime/engine.py 0.19.8 `_save_checkpoint`: the first of those that hold the same)."""
    if not _is_whole(engine.module) or engine.global_rank:
        return "unknown"
    read = read_file(Path(folder, "mp_rank_00_model_states.pt"), nullcontext)
    return "unknown" if read is None else weights_in(read["module"], engine.module)


def weights_published(model: Any, folder: str) -> Found:
    """Whether the model that was saved for others has the weights of this one.

    Args:
        model: OpenRLHF's actor, whose `model` is an engine of DeepSpeed's, or the engine of a critic.
        folder: Where its files are (utils/deepspeed/deepspeed.py 0.11.2:533 `save_model`: the first process writes them, and all wait
            for it). Where ZeRO-3 has cut the model, each process looks at its own parts.
    """
    engine = getattr(model, "model", model)
    inner = getattr(engine, "module", engine)
    if _is_whole(inner) and torch.distributed.is_initialized() and torch.distributed.get_rank():
        return "unknown"
    return weights_in_files(Path(folder), inner)


def _is_whole(model: Any) -> bool:
    return not any(hasattr(parameter, "ds_tensor") for parameter in model.parameters())
