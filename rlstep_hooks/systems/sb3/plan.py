"""A live model -> Schedule, by the formulas of `rlstep_hooks.systems.sb3.system`. Imports no framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.engine import reader
from rlstep_hooks.systems.sb3.launch import OWN
from rlstep_hooks.systems.sb3.system import SYSTEM

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule


def plan_model(model: Any, timesteps: int, version: str) -> Schedule:
    """The Schedule of one call of `learn`.

    Args:
        model: A PPO, A2C, MaskablePPO or RecurrentPPO object.
        timesteps: The timesteps that `learn` was asked for.
        version: Release of Stable-Baselines3.
    """
    # A subclass that keeps `train` is planned as what it is a subclass of.
    kinds = [kind.__name__ for kind in type(model).__mro__]
    settings: dict[str, Any] = {
        "algo": next(name for name in kinds if name in OWN),
        "n_envs": model.n_envs,
        "n_steps": model.n_steps,
        "total_timesteps": timesteps,
    }
    if settings["algo"] != "A2C":
        own = ("batch_size", "n_epochs", "target_kl", "normalize_advantage")
        settings |= {name: getattr(model, name) for name in own}
        if settings["batch_size"] is None:  # sb3-contrib: the whole rollout
            settings["batch_size"] = model.n_steps * model.n_envs
    return reader.read_config(SYSTEM, settings, version=version).schedule
