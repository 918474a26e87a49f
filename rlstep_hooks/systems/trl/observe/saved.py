"""Whether a checkpoint that was just made holds what the run holds: the first rows of some tensors, and of their moments.

The process that writes the files reads them once more. The model's are safetensors with whole tensors, which FSDP and DeepSpeed gather
for them (`restored`); the files of the optimizer have moments of a model that each process holds whole.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.saved_files import moments_in, read_file, weights_in_safetensors
from rlstep_hooks.observe.saved_parts import SavedParts
from rlstep_hooks.systems.trl.observe.restored import safe_globals

if TYPE_CHECKING:
    from rlstep_hooks.observe.saved_files import Found
    from rlstep_hooks.observe.sync_watch import EventRecorder


class SavedWatch:
    """Compares the checkpoints of one trainer with what it holds when they have been made.

    Args:
        trainer: A trainer of transformers.
        recorder: Takes what was found.
    """

    def __init__(self, trainer: Any, recorder: EventRecorder) -> None:
        self._trainer = trainer
        self._parts = SavedParts(recorder)

    def look(self, updates: int) -> None:
        """A checkpoint was made, after so many updates."""
        trainer = self._trainer
        if not trainer.args.should_save:
            return
        folder = Path(os.path.join(trainer.args.output_dir, f"checkpoint-{updates}"))
        optimizer = trainer.optimizer
        while hasattr(optimizer, "optimizer"):
            optimizer = optimizer.optimizer
        of_optimizer = read_file(folder / "optimizer.pt", safe_globals)
        found: dict[str, Found] = {
            "weights": weights_in_safetensors(folder, trainer.model),
            "moments": "unknown" if of_optimizer is None else moments_in(of_optimizer, optimizer),
        }
        self._parts.tell(found, updates=updates)
