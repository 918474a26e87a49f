"""Whether a checkpoint that was just made holds what the run holds: the first rows of some tensors, and of their moments.

The process that writes files reads them once more. The model's are safetensors with whole tensors, which FSDP and DeepSpeed gather
for them (`restored`); the files of the optimizer have moments of a model that each process holds whole. FSDP and DeepSpeed save what a
resume loads in files of their own (`saved_in_parts`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.saved_files import moments_in, read_file, weights_in_files
from rlstep_hooks.observe.saved_parts import SavedParts
from rlstep_hooks.observe.sharding.zero import wrapped_optimizer
from rlstep_hooks.systems.trl.observe.restored import safe_globals
from rlstep_hooks.systems.trl.observe.saved_in_parts import is_sharded, parts_saved

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
        folder = Path(os.path.join(self._trainer.args.output_dir, f"checkpoint-{updates}"))
        for read in (self._whole, self._in_parts):
            found = read(folder)
            if found:
                self._parts.tell(found, updates=updates)

    def _whole(self, folder: Path) -> dict[str, Found]:
        """What the files for others, and those of a model that each process holds whole, have of what this process holds."""
        trainer = self._trainer
        if not trainer.args.should_save:
            return {}
        of_optimizer = read_file(folder / "optimizer.pt", safe_globals)
        return {
            "weights": weights_in_files(folder, trainer.model),
            "moments": "unknown" if of_optimizer is None else moments_in(of_optimizer, wrapped_optimizer(trainer)),
        }

    def _in_parts(self, folder: Path) -> dict[str, Found]:
        """What FSDP's or DeepSpeed's own files have."""
        if not is_sharded(self._trainer) or self._trainer.args.save_only_model:
            return {}
        # A file that cannot be read is "unknown" besides what was found of the others.
        return {name: of for name, of in parts_saved(self._trainer, folder).items() if of != "unknown"}
