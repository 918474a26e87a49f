"""A live GRPOConfig or GRPOTrainer of ms-swift -> Schedule, by the formulas of its declaration. Imports no framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.systems.engine import reader
from rlstep_hooks.systems.swift.releases import installed_swift
from rlstep_hooks.systems.swift.system import SYSTEM
from rlstep_hooks.systems.trl.plan import read_world_size, rows_of, written_settings

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule

_READ = (
    "gradient_accumulation_steps",
    "num_generations",
    "num_iterations",
    "steps_per_generation",
    "max_steps",
    "num_train_epochs",
    "beta",
    "dynamic_sample",
)
"""Settings that the formulas read unchanged. A configuration computes steps_per_generation from generation_batch_size."""


def is_config(config: Any) -> bool:
    """Whether an object is ms-swift's GRPOConfig (or a subclass)."""
    names = ((kind.__module__.split(".")[0], kind.__name__) for kind in type(config).__mro__)
    return ("swift", "GRPOConfig") in names


def plan_live(thing: Any, *, rows: int | None, world_size: int | None) -> Schedule | None:
    """The Schedule of a GRPOConfig or GRPOTrainer of ms-swift; None for anything else.

    Raises:
        LookupError: ms-swift is not installed.
    """
    trainer = thing if hasattr(thing, "train_dataset") else None
    config: Any = thing if trainer is None else getattr(trainer, "args", None)
    if not is_config(config):
        return None
    version = installed_swift()
    if version is None:
        raise LookupError("ms-swift is not installed here")
    if trainer is not None:
        rows = rows_of(trainer.train_dataset) if rows is None else rows
        world_size = world_size or trainer.accelerator.num_processes
    settings = {name: getattr(config, name) for name in _READ}
    settings["per_device_train_batch_size"] = config.per_device_train_batch_size * max(config.n_gpu, 1)
    schedule = reader.read_config(
        SYSTEM,
        settings | {"rlhf_type": "grpo"},
        version=version,
        program="swift rlhf",
        rows=rows,
        rows_unknown="the training set is a stream of unknown length",
        world_size=world_size or read_world_size(config),
        checked=True,
    ).schedule
    return msgspec.structs.replace(
        schedule, rows_reshuffled=bool(config.dataset_shuffle), settings=written_settings(config)
    )
