"""A live PPOTrainer -> Schedule, by the same formulas as a launch command (`rlstep_hooks.systems.trl_ppo.system`)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.engine import reader
from rlstep_hooks.systems.trl.releases import installed_release
from rlstep_hooks.systems.trl_ppo.releases import refusal
from rlstep_hooks.systems.trl_ppo.system import SYSTEM

if TYPE_CHECKING:
    from rlstep_hooks.planning.reading import Reading
    from rlstep_hooks.planning.schedule import Schedule

SETTINGS = (
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "gradient_accumulation_steps",
    "num_mini_batches",
    "num_ppo_epochs",
    "total_episodes",
    "num_train_epochs",
    "num_sample_generations",
    "whiten_rewards",
)
"""Settings that the plan rests on."""
ARITHMETIC = (
    "gamma",
    "lam",
    "kl_coef",
    "kl_estimator",
    "missing_eos_penalty",
    "cliprange",
    "cliprange_value",
    "vf_coef",
    "temperature",
)
"""Settings that advantages and loss are computed with; `train` reads most of them anew for each rollout."""


def is_trainer(trainer: Any) -> bool:
    """Whether an object is a PPOTrainer of TRL (or a subclass) with a policy and a value model."""
    named = any(
        kind.__name__ == "PPOTrainer" and kind.__module__.split(".")[0] == "trl" for kind in type(trainer).__mro__
    )
    return named and hasattr(trainer, "value_model")


def is_config(config: Any) -> bool:
    """Whether an object is a PPOConfig of TRL 0.16 or later (or a subclass)."""
    named = any(
        kind.__name__ == "PPOConfig" and kind.__module__.split(".")[0] == "trl" for kind in type(config).__mro__
    )
    return named and hasattr(config, "num_ppo_epochs")


def read_trainer(trainer: Any, version: str) -> Reading:
    """What a live PPOTrainer's settings mean.

    Args:
        trainer: The trainer.
        version: Release of TRL.

    Raises:
        PlanError: The trainer fails on these sizes.
    """
    evaluation = trainer.eval_dataset
    given = _settings(trainer.args) | {"eval_rows": 0 if evaluation is None else len(evaluation)}
    processes = trainer.accelerator.num_processes
    return reader.read_config(SYSTEM, given, rows=len(trainer.train_dataset), world_size=processes, version=version)


def read_config(config: Any, version: str, *, rows: int | None, world_size: int | None) -> Reading:
    """What a PPOConfig means. Without the evaluation set, totals are not evaluated where completions are sampled from it.

    Args:
        config: The configuration.
        version: Release of TRL.
        rows: Rows of the training set; None where they are not known.
        world_size: Data-parallel processes; None for those of the launcher's environment, else 1.

    Raises:
        PlanError: The trainer fails on these sizes.
    """
    processes = world_size or int(os.environ.get("WORLD_SIZE", "1"))
    return reader.read_config(SYSTEM, _settings(config), rows=rows, world_size=processes, version=version)


def plan_live(thing: Any, *, rows: int | None, world_size: int | None) -> Schedule | None:
    """The Schedule of a PPOConfig or PPOTrainer of TRL 0.16 to 0.24; None for anything else.

    Raises:
        LookupError: The release is not supported.
        PlanError: The trainer fails on these sizes.
    """
    trainer = thing if hasattr(thing, "train_dataset") else None
    config = thing if trainer is None else getattr(trainer, "args", None)
    if not is_config(config):
        return None
    release = installed_release()
    if release is None:
        raise LookupError("TRL is not installed")
    if reason := refusal(release):
        raise LookupError(reason)
    if trainer is not None and rows is None and world_size is None:
        return read_trainer(trainer, release.trl).schedule
    if trainer is not None:
        rows = len(trainer.train_dataset) if rows is None else rows
        world_size = world_size or trainer.accelerator.num_processes
    return read_config(config, release.trl, rows=rows, world_size=world_size).schedule


def _settings(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name) for name in SETTINGS if hasattr(config, name)}
