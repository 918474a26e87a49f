"""What a checkpoint of verl must bring back: weights, the optimizer's steps, the position of the learning rate, that of the loader.

A trainer notes beside the records what it saved, by the path of the checkpoint; a run that resumes with the same folder of
records compares what it holds when it begins with that note.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

FOLDER = "checkpoints"
"""Below the folder of records."""


class State(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one role's model and optimizer hold at one moment, in this process."""

    weights: int
    """Checksum of the probed weights."""
    optimizer_step: int | None = None
    """Steps that the optimizer has taken by its own count; None where it keeps none."""
    lr_tick: int | None = None
    """Position of the learning-rate scheduler."""


def state_of(engine: Any, weights: Tensor) -> State:
    """The state of an engine. Waits for its device, which happens at the start and where a checkpoint is written anyway."""
    return State(checksum_of_weights(weights), _optimizer_step(engine.optimizer), _tick(engine.lr_scheduler))


def checksum_of_weights(weights: Tensor) -> int:
    """A checksum of weights on any device, bit for bit."""
    return zlib.crc32(weights.detach().float().cpu().contiguous().numpy().tobytes())


def _tick(scheduler: Any) -> int | None:
    tick = getattr(scheduler, "last_epoch", None)
    return tick if isinstance(tick, int) else None


def _optimizer_step(optimizer: Any) -> int | None:
    """The steps of the first parameter that has any; 0 where no parameter has a state yet."""
    states = getattr(optimizer, "state", None)
    if states is None:
        return None
    first = next((state for state in states.values() if state), None)
    if first is None:
        return 0
    return int(first["step"]) if "step" in first else None


def note_saved(folder: Path, process: str, path: str, state: State) -> None:
    """Note what a checkpoint holds."""
    file = _note(folder, process, path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"path": path, **msgspec.to_builtins(state)}))


def saved(folder: Path, process: str, path: str) -> State | None:
    """What a checkpoint holds, where a run with the same folder of records wrote it."""
    file = _note(folder, process, path)
    if not path or not file.exists():
        return None
    return msgspec.json.decode(file.read_bytes(), type=State)


def _note(folder: Path, process: str, path: str) -> Path:
    return folder / FOLDER / f"{zlib.crc32(path.encode()):08x}.{process}.json"


def restored(now: State, first: State, noted: State | None, *, loads: dict[str, bool], exact: bool) -> dict[str, Any]:
    """The fact of a role that rule RLS702 reads.

    Args:
        now: When training begins.
        first: When the model was built, before any checkpoint was loaded.
        noted: What the checkpoint holds, where it is known.
        loads: Which parts the configuration loads (`checkpoint.load_contents`).
        exact: Whether the weights are of a precision in which every update changes some of them.
    """
    if not loads["model"]:
        weights = "not loaded by the configuration"
    elif noted is not None:
        weights = "as saved" if now.weights == noted.weights else "others"
    else:
        weights = "those before the checkpoint" if exact and now.weights == first.weights else "unknown"
    return {
        "weights": weights,
        "optimizer_step": now.optimizer_step if loads["optimizer"] else None,
        "saved_optimizer_step": None if noted is None else noted.optimizer_step,
        "lr_tick": now.lr_tick if loads["extra"] else None,
        "saved_lr_tick": None if noted is None else noted.lr_tick,
    }


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
