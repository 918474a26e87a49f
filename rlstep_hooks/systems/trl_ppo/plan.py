"""A live PPOTrainer -> Schedule, by the same formulas as a launch command (`rlstep_hooks.systems.trl_ppo.launch`)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.command import Command, Program
from rlstep_hooks.launch.settings import Setting, Settings
from rlstep_hooks.systems.reader import Request
from rlstep_hooks.systems.trl_ppo.launch import DEFAULTS, READER

if TYPE_CHECKING:
    from rlstep_hooks.planning.reading import Reading

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
    request = _request(trainer.args, version, len(trainer.train_dataset), trainer.accelerator.num_processes)
    evaluation = trainer.eval_dataset
    return READER.with_evaluation(request, 0 if evaluation is None else len(evaluation))


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
    why = (
        "the rows of the evaluation set are not known; ask for the plan of the trainer, or set num_sample_generations=0"
    )
    return READER.with_evaluation(_request(config, version, rows, processes), None, why)


def _request(config: Any, version: str, rows: int | None, world_size: int) -> Request:
    """A live configuration as a launch."""
    given = {name: Setting(name, getattr(config, name)) for name in SETTINGS if hasattr(config, name)}
    return Request(
        settings=Settings(given, DEFAULTS),
        version=version,
        command=Command(Program("config", "PPOTrainer"), ()),
        rows_given=rows,
        world_size_given=world_size,
    )
