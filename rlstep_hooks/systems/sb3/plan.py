"""A live PPO or A2C model -> Schedule, by the formulas of `rlstep_hooks.systems.sb3.system`. Imports no framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems import reader
from rlstep_hooks.systems.sb3.system import SYSTEM

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule


def plan_model(model: Any, total_timesteps: int, version: str) -> Schedule:
    """The Schedule of one call of `learn`.

    Args:
        model: A PPO or A2C object.
        total_timesteps: Timesteps at which `learn` ends, those made before it included.
        version: Release of Stable-Baselines3.
    """
    settings: dict[str, Any] = {
        "algo": "A2C",
        "n_envs": model.n_envs,
        "n_steps": model.n_steps,
        "total_timesteps": max(total_timesteps - int(model.num_timesteps), 0),
    }
    if hasattr(model, "batch_size"):
        own = ("batch_size", "n_epochs", "target_kl", "normalize_advantage")
        settings |= {"algo": "PPO"} | {name: getattr(model, name) for name in own}
    return reader.read_config(SYSTEM, settings, version=version).schedule
