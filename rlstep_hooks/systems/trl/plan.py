"""A live GRPOConfig or RLOOConfig -> Schedule, by the formulas of `rlstep_hooks.systems.trl.system`. Imports no framework."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.systems.engine import reader
from rlstep_hooks.systems.trl.launch import PLAN_SETTINGS
from rlstep_hooks.systems.trl.releases import TrlRelease, installed_release
from rlstep_hooks.systems.trl.system import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.systems.trl.launch import Algorithm

_READ = (
    "gradient_accumulation_steps",
    "num_generations",
    "steps_per_generation",
    "num_iterations",
    "max_steps",
    "num_train_epochs",
    "beta",
    "shuffle_dataset",
    "use_vllm",
    "vllm_importance_sampling_correction",
    # trl.experimental: fields of the configurations of GFPO (0.24 to 1.8) and DPPO (1.0 to 1.8) alone.
    "num_remains_in_group",
    "divergence_type",
)
"""Settings that the formulas read unchanged. A configuration computes steps_per_generation from generation_batch_size."""


def is_config(config: Any) -> bool:
    """Whether an object is a GRPOConfig or RLOOConfig of TRL (or a subclass)."""
    return _algorithm(config) is not None


def _algorithm(config: Any) -> Algorithm | None:
    for kind in type(config).__mro__:
        if kind.__module__.split(".")[0] == "trl":
            if kind.__name__ == "GRPOConfig":
                return "GRPO"
            if kind.__name__ == "RLOOConfig" and hasattr(config, "steps_per_generation"):
                return "RLOO"
    return None


def plan_settings(
    settings: Mapping[str, Any],
    release: TrlRelease,
    *,
    algorithm: Algorithm = "GRPO",
    world_size: int,
    rows: int | None,
) -> Schedule:
    """The Schedule of settings that TRL accepts, by their names in TRL.

    Args:
        settings: The settings; steps_per_generation rather than generation_batch_size.
        release: Releases of TRL and transformers.
        algorithm: GRPO or RLOO.
        world_size: Data-parallel processes.
        rows: Rows of the training set; None for a stream.
    """
    reading = reader.read_config(
        SYSTEM,
        {**settings, "transformers_version": release.transformers},
        version=release.trl,
        program=f"trl {algorithm.lower()}",
        rows=rows,
        rows_unknown="the training set is a stream of unknown length",
        world_size=world_size,
        checked=True,
    )
    return reading.schedule


def written_settings(config: Any) -> dict[str, Any]:
    """The settings behind a plan, and those that people turn when a run goes wrong, under TRL's own names, as plain values."""
    written = {}
    for name in dict.fromkeys((*PLAN_SETTINGS, *SYSTEM.knobs.values())):
        if hasattr(config, name):
            value = getattr(config, name)
            value = getattr(value, "value", value)
            written[name] = value if isinstance(value, int | float | str | bool | None) else str(value)
    return written


def read_world_size(config: Any) -> int:
    """Data-parallel processes of a configuration: WORLD_SIZE where a launcher set it, else the configuration's own."""
    if "WORLD_SIZE" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    return int(getattr(config, "world_size", 1))


def rows_of(dataset: Any) -> int | None:
    """Rows of a data set, or None for a stream."""
    try:
        return len(dataset)
    except TypeError:
        return None


def plan_config(
    config: Any, *, rows: int | None, world_size: int | None = None, release: TrlRelease | None = None
) -> Schedule:
    """The Schedule of a live GRPOConfig or RLOOConfig.

    Args:
        config: The configuration.
        rows: Rows of the training set; None for a stream, whose totals are then not evaluated.
        world_size: Data-parallel processes; read from the environment or the configuration if left out.
        release: Releases of TRL and transformers; the installed ones if left out.

    Raises:
        TypeError: The object is no such configuration.
        LookupError: TRL is not installed and no release is given.
    """
    release = release or installed_release()
    if release is None:
        raise LookupError("TRL is not installed here; name its release")
    algorithm = _algorithm(config)
    if algorithm is None:
        raise TypeError(f"{type(config).__name__} is neither a GRPOConfig nor an RLOOConfig of TRL 0.16 or later")
    settings = {name: getattr(config, name) for name in _READ if hasattr(config, name)}
    settings["max_steps"] = max(config.max_steps, -1)  # any negative number means none
    settings["num_train_epochs"] = max(config.num_train_epochs, 0)  # a negative number of passes makes none
    settings["per_device_train_batch_size"] = config.per_device_train_batch_size * max(getattr(config, "n_gpu", 1), 1)
    schedule = plan_settings(
        settings, release, algorithm=algorithm, world_size=world_size or read_world_size(config), rows=rows
    )
    return msgspec.structs.replace(schedule, settings=written_settings(config))


def plan_trainer(trainer: Any) -> Schedule:
    """The Schedule of a live GRPOTrainer or RLOOTrainer.

    Raises:
        TypeError: The object is no such trainer.
    """
    return plan_config(trainer.args, rows=rows_of(trainer.train_dataset), world_size=trainer.accelerator.num_processes)


def plan_live(thing: Any, *, rows: int | None, world_size: int | None) -> Schedule | None:
    """The Schedule of a GRPOConfig, RLOOConfig, GRPOTrainer or RLOOTrainer of TRL 0.16 to 1.16; None for anything else.

    Raises:
        LookupError: TRL is not installed, or its release is not supported.
    """
    trainer = thing if hasattr(thing, "train_dataset") else None
    config = thing if trainer is None else getattr(trainer, "args", None)
    if not is_config(config):
        return None
    release = installed_release()
    if release is not None and not release.supported:
        raise LookupError(f"TRL {release.trl} is not supported (0.16 to 1.16 are)")
    if trainer is not None:
        rows = rows_of(trainer.train_dataset) if rows is None else rows
        world_size = world_size or trainer.accelerator.num_processes
    return plan_config(config, rows=rows, world_size=world_size)
