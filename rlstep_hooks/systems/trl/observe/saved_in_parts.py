"""What the checkpoint of a sharded trainer has of this process's part: DeepSpeed's file of it, or FSDP2's parts and whole tensors.

transformers lets both save in forms of their own (`Trainer._save_optimizer_and_scheduler`, 4.51.3 trainer.py:3374, 5.23.0
trainer.py:3548) and loads from them. FSDP1's flat parameters are in no form that is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.checkpoints import optimizer_step
from rlstep_hooks.observe.rates import tick_of
from rlstep_hooks.observe.saved_files import read_file
from rlstep_hooks.observe.sharding import saved_zero
from rlstep_hooks.observe.sharding.saved_fsdp import is_cut_by_fsdp2, moments_written, steps_written, weights_written
from rlstep_hooks.observe.sharding.zero import wrapped_optimizer
from rlstep_hooks.systems.trl.observe.engine_steps import engine_of
from rlstep_hooks.systems.trl.observe.restored import safe_globals

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.observe.saved_files import Found


def is_sharded(trainer: Any) -> bool:
    """Whether FSDP or DeepSpeed saves the trainer's checkpoints."""
    return bool(getattr(trainer, "is_fsdp_enabled", False) or getattr(trainer, "is_deepspeed_enabled", False))


def parts_saved(trainer: Any, folder: Path) -> dict[str, Found]:
    """What the parts that were just written have of what this process holds, by the words of rule RLS703.

    Args:
        trainer: A trainer whose checkpoints FSDP or DeepSpeed saves.
        folder: The checkpoint's.
    """
    engine = engine_of(trainer)
    if engine is not None:
        return saved_zero.parts_saved(engine, folder / f"global_step{engine.global_steps}")
    if not is_cut_by_fsdp2(trainer.model):
        return {}
    whole, optimizer = bool(trainer.args.should_save), wrapped_optimizer(trainer)
    return {
        "weights that a resume loads": weights_written(folder, trainer.model, whole=whole),
        "moments": moments_written(folder, trainer.model, optimizer, whole=whole),
    }


def parts_restored(trainer: Any, folder: Path) -> dict[str, Any] | None:
    """What rule RLS702 reads of a trainer that has loaded a checkpoint; None where none of it can be compared. Arguments as of
    `parts_saved`."""
    engine = engine_of(trainer)
    if engine is not None:
        found = saved_zero.parts_restored(engine, folder / (folder / saved_zero.LATEST).read_text().strip())
    else:
        found = _restored_by_fsdp2(trainer, folder) if is_cut_by_fsdp2(trainer.model) else None
    if found is None or found["weights"] == found["moments"] == "unknown":
        return None
    of_scheduler = read_file(folder / "scheduler.pt", safe_globals)
    if of_scheduler is not None:
        found |= {"lr_tick": tick_of(trainer.lr_scheduler), "saved_lr_tick": of_scheduler.get("last_epoch")}
    return found


def _restored_by_fsdp2(trainer: Any, folder: Path) -> dict[str, Any]:
    optimizer = wrapped_optimizer(trainer)
    moments = moments_written(folder, trainer.model, optimizer, whole=True)
    return {
        "weights": weights_written(folder, trainer.model, whole=True),
        "optimizer_step": None if moments == "unknown" else optimizer_step(optimizer),
        "saved_optimizer_step": steps_written(folder, trainer.model),
        "lr_tick": None,
        "saved_lr_tick": None,
        "optimizer_left_out": None,
        "moments": moments,
    }
