"""`plan`: the Schedule of any live configuration or trainer that a framework's reader knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlstep_hooks.schedule import Schedule


def plan(config_or_trainer: Any, *, rows: int | None = None, world_size: int | None = None) -> Schedule:
    """What a live configuration says will happen.

    Args:
        config_or_trainer: A GRPOConfig, RLOOConfig, GRPOTrainer or RLOOTrainer of TRL 0.16 to 1.16.
        rows: Rows of the training set; read from a trainer. Left out for a configuration, totals are not evaluated.
        world_size: Data-parallel processes; read from the trainer, the launcher's environment or the configuration.

    Raises:
        TypeError: No reader knows the object.
        LookupError: The framework is not installed, or its release is not supported.
    """
    from rlstep_hooks.frameworks.trl import plan as trl
    from rlstep_hooks.frameworks.trl.releases import installed_release

    trainer = config_or_trainer if hasattr(config_or_trainer, "train_dataset") else None
    config = trainer.args if trainer is not None else config_or_trainer
    if not trl.is_config(config):
        raise TypeError(f"no reader knows {type(config_or_trainer).__name__}; GRPO and RLOO of TRL are known")
    release = installed_release()
    if release is not None and not release.supported:
        raise LookupError(f"TRL {release.trl} is not supported (0.16 to 1.16 are)")
    if trainer is not None:
        rows = trl.rows_of(trainer.train_dataset) if rows is None else rows
        world_size = world_size or trainer.accelerator.num_processes
    return trl.plan_config(config, rows=rows, world_size=world_size)
