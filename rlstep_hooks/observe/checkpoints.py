"""What a checkpoint must bring back: weights, the optimizer's steps, the position of the learning rate.

A trainer notes beside the records what it saved, by the path of the checkpoint; a run that resumes with the same folder of
records compares what it holds when it begins with that note.
"""

from __future__ import annotations

import json
import os
import zlib
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "checkpoints"
"""The name of the folder, below the folder of records."""


class State(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one role's model and optimizer hold at one moment, in this process."""

    weights: int
    """Checksum of the probed weights."""
    optimizer_step: int | None = None
    """Steps that the optimizer has taken by its own count; None where it keeps none."""
    lr_tick: int | None = None
    """Position of the learning-rate scheduler."""
    all_weights: int | None = None
    """Checksum of all weights that this process holds; None where they were not read."""
    moments: int | None = None
    """Checksum of all that the optimizer keeps of its tensors in this process; None where that was not read."""


def optimizer_step(optimizer: Any) -> int | None:
    """The steps of the first parameter that has any; 0 where none has a state yet, None where none ever will or states count none."""
    states = getattr(optimizer, "state", None)
    if states is None:
        return None
    first = next((state for state in states.values() if state), None)
    if first is None:
        return None if _keeps_nothing(optimizer) else 0
    return int(first["step"]) if "step" in first else None


def _keeps_nothing(optimizer: Any) -> bool:
    """Whether it is SGD without momentum, whose state stays empty (torch/optim/sgd.py `_init_group`, 2.13)."""
    return all(group.get("momentum") == 0 and "dampening" in group for group in optimizer.param_groups)


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
    return folder / FOLDER / f"{zlib.crc32(os.path.abspath(path).encode()):08x}.{process}.json"


def restored(now: State, first: State, noted: State | None, *, loads: dict[str, bool], exact: bool) -> dict[str, Any]:
    """The fact of a role that rule RLS702 reads.

    `optimizer_left_out` has the optimizer's steps where the configuration loads the weights without it: a fresh one trains on.

    Args:
        now: The state when training begins.
        first: The state when the model was built, before any checkpoint was loaded.
        noted: What the checkpoint holds, where it is known.
        loads: Which parts the configuration loads: "model", "optimizer" and "extra", where the learning rate is.
        exact: Whether the weights are of a precision in which every update changes some of them.
    """
    if not loads["model"]:
        weights = "not loaded by the configuration"
    elif noted is not None:
        weights = (
            "as saved" if now.weights == noted.weights and _alike(now.all_weights, noted.all_weights) else "others"
        )
    else:
        weights = "those before the checkpoint" if exact and now.weights == first.weights else "unknown"
    known: dict[str, Any] = {
        "weights": weights,
        "optimizer_step": now.optimizer_step if loads["optimizer"] else None,
        "saved_optimizer_step": None if noted is None else noted.optimizer_step,
        "lr_tick": now.lr_tick if loads["extra"] else None,
        "saved_lr_tick": None if noted is None else noted.lr_tick,
        "optimizer_left_out": now.optimizer_step if loads["model"] and not loads["optimizer"] else None,
    }
    if loads["optimizer"] and noted is not None and None not in (now.moments, noted.moments):
        known["moments"] = "as saved" if now.moments == noted.moments else "others"
    return known


def _alike(one: int | None, other: int | None) -> bool:
    """Whether two checksums do not tell apart what they were taken of."""
    return one is None or other is None or one == other
