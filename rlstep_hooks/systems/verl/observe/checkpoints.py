"""What an engine and a loader of verl hold, which a checkpoint must bring back."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.checkpoints import State, optimizer_step
from rlstep_hooks.observe.held_checksums import checksum_of_all, kept_of

if TYPE_CHECKING:
    from torch import Tensor


def state_of(engine: Any, weights: Tensor) -> State:
    """The state of an engine. Waits for its device, which happens at the start and where a checkpoint is written anyway."""
    return State(
        checksum_of_weights(weights),
        optimizer_step(engine.optimizer),
        _tick(engine.lr_scheduler),
        checksum_of_all(engine.module.parameters()),
        checksum_of_all(kept_of(engine.optimizer)),
    )


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
