"""Whether a checkpoint of OpenRLHF brings back the weights that it was saved with.

Each trainer notes beside the records which weights it saved, by the path of the checkpoint; a run that resumes with the same folder of
records compares the weights that it begins with. Nothing else of a checkpoint is looked at here.
"""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.openrlhf.observe.fingerprint import label_of, sums_of, total

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "checkpoints"
"""Below the folder of records."""

LATEST = "latest"
"""DeepSpeed's file with the name of the checkpoint that is loaded next (runtime/engine.py `load_checkpoint`)."""


def weights_of(model: Any) -> int:
    """The label of the weights that this process holds: the whole model, or its part of each parameter (ZeRO-3)."""
    held = (getattr(parameter, "ds_tensor", parameter).detach() for parameter in model.parameters())
    return label_of(total(sums_of(held)))


def note_saved(folder: Path, process: str, path: str, weights: int) -> None:
    """Note which weights a checkpoint holds."""
    file = _note(folder, process, path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(str(weights))


def saved(folder: Path, process: str, path: str) -> int | None:
    """The weights that a checkpoint holds, if a run with the same folder of records wrote it."""
    file = _note(folder, process, path)
    return int(file.read_text()) if file.exists() else None


def resumed_from(args: Any, role: str) -> str | None:
    """The checkpoint that a role begins with (ppo_actor.py:574, ppo_critic.py:241); None if it begins anew."""
    folder = os.path.join(args.ckpt.path, f"_{'actor' if role == 'policy' else role}")
    latest = os.path.join(folder, LATEST)
    if not args.ckpt.load_enable or not os.path.exists(latest):
        return None
    with open(latest) as file:
        return os.path.join(folder, file.read().strip())


def _note(folder: Path, process: str, path: str) -> Path:
    return folder / FOLDER / f"{zlib.crc32(os.path.abspath(path).encode()):08x}.{process}.txt"
