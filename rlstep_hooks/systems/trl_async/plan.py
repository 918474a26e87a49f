"""A live AsyncGRPOTrainer or AsyncGRPOConfig -> Schedule, by the formulas of `rlstep_hooks.systems.trl_async.system`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.engine import reader
from rlstep_hooks.systems.trl.releases import installed_release
from rlstep_hooks.systems.trl_async.system import SYSTEM

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule

SETTINGS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "num_generations",
    "num_train_epochs",
    "max_staleness",
    "weight_sync_steps",
    "token_budget",
    "max_tool_calling_iterations",
    "top_p",
    "top_k",
)
"""Settings that the plan rests on, but for max_steps, which the trainer overwrites where it ends by epochs."""


def is_config(config: Any) -> bool:
    """Whether an object is an AsyncGRPOConfig of TRL (or a subclass)."""
    kinds = type(config).__mro__
    return any(kind.__name__ == "AsyncGRPOConfig" and kind.__module__.split(".")[0] == "trl" for kind in kinds)


def plan_trainer(trainer: Any) -> Schedule:
    """The plan of a live trainer; the processes and the rows are its own.

    Raises:
        LookupError: TRL is not installed.
    """
    by_epochs = getattr(trainer, "_epoch_stop_groups", None) is not None
    rows = trainer.train_dataset
    return _read(
        trainer.args,
        max_steps=-1 if by_epochs else trainer.args.max_steps,
        rows=len(rows) if hasattr(rows, "__len__") else None,
        world_size=trainer.accelerator.num_processes,
    )


def plan_live(thing: Any, *, rows: int | None, world_size: int | None) -> Schedule | None:
    """The Schedule of an AsyncGRPOConfig or AsyncGRPOTrainer; None for anything else.

    Raises:
        LookupError: TRL is not installed.
    """
    if hasattr(thing, "train_dataset") and is_config(getattr(thing, "args", None)):
        return plan_trainer(thing)
    if not is_config(thing):
        return None
    processes = world_size or int(os.environ.get("WORLD_SIZE", "1"))
    return _read(thing, max_steps=thing.max_steps, rows=rows, world_size=processes)


def _read(config: Any, *, max_steps: int, rows: int | None, world_size: int) -> Schedule:
    release = installed_release()
    if release is None:
        raise LookupError("TRL is not installed")
    kind = config.lr_scheduler_type
    given = {name: getattr(config, name) for name in SETTINGS if getattr(config, name, None) is not None}
    given |= {"max_steps": max_steps, "lr_scheduler_type": str(getattr(kind, "value", kind))}
    reading = reader.read_config(
        SYSTEM,
        given,
        version=release.trl,
        rows=rows,
        rows_unknown="the training set is a stream of unknown length",
        world_size=world_size,
    )
    return reading.schedule
