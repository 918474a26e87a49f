"""A live PPOTrainer -> Schedule, by the same formulas as a launch command (`rlstep_hooks.readers.trl_ppo`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.command import Command, Program
from rlstep_hooks.launch.settings import Setting, Settings
from rlstep_hooks.readers.base import Request
from rlstep_hooks.readers.trl_ppo import DEFAULTS, READER

if TYPE_CHECKING:
    from rlstep_hooks.readers.base import Reading

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


def read_trainer(trainer: Any, version: str) -> Reading:
    """What a live PPOTrainer's settings mean.

    Args:
        trainer: The trainer.
        version: Release of TRL.

    Raises:
        PlanError: The trainer fails on these sizes.
    """
    given = {name: Setting(name, getattr(trainer.args, name)) for name in SETTINGS if hasattr(trainer.args, name)}
    request = Request(
        settings=Settings(given, DEFAULTS),
        version=version,
        command=Command(Program("config", "PPOTrainer"), ()),
        rows_given=len(trainer.train_dataset),
        world_size_given=trainer.accelerator.num_processes,
    )
    evaluation = trainer.eval_dataset
    return READER.with_evaluation(request, 0 if evaluation is None else len(evaluation))
