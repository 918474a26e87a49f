"""What each process holds of a sharded run when it saves a checkpoint, and whether it holds that again when it resumes from it.

Each process notes beside the records all that it held when the checkpoint was made, and a run that resumes from it with the same folder
of records, as many processes and the same way to share compares what it holds then. Without such a note it reads some of its part from
the files (`saved_in_parts`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.checkpoints import State, note_saved, optimizer_step, restored, saved
from rlstep_hooks.observe.held_checksums import checksum_of_all, kept_of, stepped_by
from rlstep_hooks.observe.rates import tick_of
from rlstep_hooks.record.describe import describe
from rlstep_hooks.systems.trl.observe.restored import resumes_from
from rlstep_hooks.systems.trl.observe.saved_in_parts import is_sharded, parts_restored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

NO_NOTE = (
    "no audit noted in this folder of records, for as many processes, what this checkpoint was made of, and its files are in a form of "
    "FSDP's or DeepSpeed's that is not read"
)


def note_shards(trainer: Any, folder: str | os.PathLike[str], updates: int) -> None:
    """Note what this process holds, once a checkpoint is made (`Trainer._save_checkpoint`, transformers 4.51.3 to 5.23.0).

    Args:
        trainer: A trainer whose checkpoints FSDP or DeepSpeed saves.
        folder: The folder of records.
        updates: The updates that the checkpoint is named after.
    """
    path = os.path.join(trainer.args.output_dir, f"checkpoint-{updates}")
    note_saved(Path(folder), _process(trainer), path, _held(trainer))


def restored_shards(trainer: Any, folder: str | os.PathLike[str] | None) -> dict[str, Any]:
    """What rule RLS702 reads of a sharded trainer that begins to train from a checkpoint; empty of any other.

    Args:
        trainer: The trainer.
        folder: The folder of records; None where there is none.
    """
    path = resumes_from(trainer)
    if path is None or not is_sharded(trainer):
        return {}
    try:
        noted = None if folder is None else saved(Path(folder), _process(trainer), str(path))
        if noted is None:
            read = parts_restored(trainer, Path(path))
            return {"restored_unknown": NO_NOTE} if read is None else {"restored_policy": read, "restored_unknown": ""}
        now, whole = _held(trainer), noted.moments is not None
        loads = {"model": True, "optimizer": whole, "extra": whole}
        return {"restored_policy": restored(now, now, noted, loads=loads, exact=False), "restored_unknown": ""}
    except Exception as error:  # noqa: BLE001 - what cannot be compared keeps nothing from being trained
        return {"restored_unknown": f"the checkpoint could not be compared: {describe(error)}"}


def _process(trainer: Any) -> str:
    """This process among those that share the model in one way: of another number or way each holds another part."""
    stage = getattr(getattr(trainer.accelerator.state, "deepspeed_plugin", None), "zero_stage", None)
    way = "fsdp" if stage is None else f"zero{stage}"
    return f"rank{trainer.accelerator.process_index}-of-{trainer.accelerator.num_processes}-{way}"


def _held(trainer: Any) -> State:
    """The parts of the weights, of the float32 weights that are stepped, and of the moments. Waits for the device, as saving does."""
    optimizer = trainer.optimizer
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    weights = checksum_of_all([*_parts(trainer.model), *stepped_by(optimizer)])
    if trainer.args.save_only_model:
        return State(weights)
    moments = checksum_of_all(of for of in kept_of(optimizer) if of.dim())
    return State(weights, optimizer_step(optimizer), tick_of(trainer.lr_scheduler), moments=moments)


def _parts(model: Any) -> Iterator[Tensor]:
    """ZeRO-3 keeps a process's part of a parameter beside it."""
    for parameter in model.parameters():
        yield getattr(parameter, "ds_tensor", parameter)
