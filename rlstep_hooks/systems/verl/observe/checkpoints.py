"""What an engine and a loader of verl hold, which a checkpoint must hold and bring back."""

from __future__ import annotations

import zlib
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.checkpoints import State, optimizer_step
from rlstep_hooks.observe.held_checksums import checksum_of_all, kept_of
from rlstep_hooks.observe.saved_files import moments_in, read_file, weights_in

if TYPE_CHECKING:
    from torch import Tensor

    from rlstep_hooks.observe.saved_files import Found


def state_of(engine: Any, weights: Tensor) -> State:
    """The state of an engine. Waits for its device, which happens at the start and where a checkpoint is written anyway."""
    return State(
        checksum_of_weights(weights),
        optimizer_step(engine.optimizer),
        _tick(engine.lr_scheduler),
        checksum_of_all(engine.module.parameters()),
        checksum_of_all(kept_of(engine.optimizer)),
    )


def saved_parts(engine: Any, folder: str) -> dict[str, Found]:
    """What the files that this process has just written have of what it holds. FSDP1's flat parameters are not compared: their files
    have other tensors.

    Each process writes `model_world_size_N_rank_R.pt` and `optim_world_size_N_rank_R.pt`, with DTensors where the model has such
    (utils/checkpoint/fsdp_checkpoint_manager.py 0.9.1:283).

    Args:
        engine: An engine with FSDP.
        folder: The folder of the role's checkpoint.
    """
    manager = engine.checkpoint_manager
    # torch itself knows the classes of DTensors (torch 2.13 distributed/tensor/__init__.py).
    of_model, of_optimizer = (
        read_file(Path(folder, f"{kind}_world_size_{manager.world_size}_rank_{manager.rank}.pt"), nullcontext)
        for kind in ("model", "optim")
    )
    return {
        "weights": "unknown" if of_model is None else weights_in(of_model, engine.module),
        "moments": "unknown" if of_optimizer is None else moments_in(of_optimizer, engine.optimizer),
    }


def checksum_of_weights(weights: Tensor) -> int:
    """A checksum of weights on any device, bit for bit."""
    return zlib.crc32(weights.detach().float().cpu().contiguous().numpy().tobytes())


def _tick(scheduler: Any) -> int | None:
    tick = getattr(scheduler, "last_epoch", None)
    return tick if isinstance(tick, int) else None


def loader_position(loader: Any) -> int:
    """Batches that a `StatefulDataLoader` will go on after, in the pass that it was saved in; 0 where it begins anew.

    Both forms of its state, with and without worker processes, were read in torchdata 0.11.
    """
    state = getattr(loader, "next_iter_state", None)
    if not state:
        return 0
    if "_num_yielded" in state:
        return int(state["_num_yielded"])
    return int(state["_snapshot"]["_snapshot_step"]) + int(state["_steps_since_snapshot"])
