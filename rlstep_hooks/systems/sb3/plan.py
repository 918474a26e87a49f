"""PPO or A2C of Stable-Baselines3 -> Schedule.

Read in the wheels of 2.7.0 and 2.9.2, whose training code is the same: ppo/ppo.py `__init__` and `train`, a2c/a2c.py,
common/on_policy_algorithm.py `learn`, common/buffers.py `RolloutBuffer.get`. Imports no framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rlstep_hooks.planning.minibatches import cut_by_size_kept, rollouts_of
from rlstep_hooks.planning.phases import Passes, schedule_in_phases
from rlstep_hooks.planning.reading import Formula

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule

FRAMEWORK = "Stable-Baselines3"

Algorithm = Literal["PPO", "A2C"]

_PPO = "SB3 2.7.0 stable_baselines3/ppo/ppo.py"
_LEARN = "SB3 2.7.0 stable_baselines3/common/on_policy_algorithm.py learn"

FORMULAS = {
    "PPO": (
        Formula("samples_per_rollout", "n_steps * n_envs", f"{_PPO} __init__ buffer_size"),
        Formula(
            "updates_per_rollout",
            "n_epochs * ceil(n_steps * n_envs / batch_size)",
            f"{_PPO} train; buffers.py RolloutBuffer.get",
        ),
        Formula("rollouts", "ceil(total_timesteps / (n_steps * n_envs))", _LEARN),
        Formula("lr_ticks", "rollouts", f"{_PPO} train _update_learning_rate"),
    ),
    "A2C": (
        Formula("samples_per_rollout", "n_steps * n_envs", "SB3 2.7.0 stable_baselines3/a2c/a2c.py"),
        Formula("updates", "rollouts", "SB3 2.7.0 stable_baselines3/a2c/a2c.py train"),
        Formula("rollouts", "ceil(total_timesteps / (n_steps * n_envs))", _LEARN),
    ),
}


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """What the plan rests on."""

    algorithm: Algorithm
    n_envs: int
    n_steps: int
    total_timesteps: int
    """Timesteps that this call of `learn` is to make."""
    batch_size: int = 0
    """Of PPO."""
    n_epochs: int = 1
    stops_early: bool = False
    """Whether target_kl is set."""

    @property
    def samples(self) -> int:
        """Timesteps of one rollout."""
        return self.n_envs * self.n_steps

    @property
    def written(self) -> dict[str, Any]:
        """The settings under their own names."""
        own = {"batch_size": self.batch_size, "n_epochs": self.n_epochs} if self.algorithm == "PPO" else {}
        return {"n_envs": self.n_envs, "n_steps": self.n_steps, "total_timesteps": self.total_timesteps} | own


def make_schedule(sizes: Sizes, version: str) -> Schedule:
    """The Schedule of one call of `learn`.

    A2C makes one update with all samples of a rollout and has no ratio. With target_kl the updates are an upper bound: PPO
    leaves `train` before the backward of the first mini-batch whose KL is above 1.5 x target_kl.

    Args:
        sizes: The live or the written settings.
        version: Release of Stable-Baselines3.
    """
    ppo, samples = sizes.algorithm == "PPO", sizes.samples
    minibatches = cut_by_size_kept(samples, sizes.batch_size) if ppo else (samples,)
    counted = f"passes, {sizes.n_epochs} for each rollout" if ppo else "updates"
    return schedule_in_phases(
        framework=FRAMEWORK,
        version=version,
        algorithm=sizes.algorithm,
        passes=Passes.without_rows(rollouts_of(sizes.total_timesteps, samples, "up")),
        prompts_per_rollout=sizes.n_envs,
        samples_per_prompt=sizes.n_steps,
        minibatches=minibatches,
        reuse_epochs=sizes.n_epochs,
        samples_per_microbatch=max(minibatches),
        microbatches_per_update=1,
        updates_bound="upper" if sizes.stops_early else "exact",
        remainder="error" if len(set(minibatches)) == 1 else "keep",
        old_logprob_source="at_rollout" if ppo else "none",
        lr_clock="rollout",
        step_unit="timestep",
        step_means=f"1 step = 1 timestep, {samples} for each rollout; train/n_updates counts {counted}",
        settings=sizes.written,
        formulas=FORMULAS[sizes.algorithm],
    )


def sizes_of(model: Any, total_timesteps: int) -> Sizes:
    """The sizes of a live model.

    Args:
        model: A PPO or A2C object.
        total_timesteps: Timesteps at which `learn` ends, those made before it included.
    """
    left = max(total_timesteps - int(model.num_timesteps), 0)
    if not hasattr(model, "batch_size"):
        return Sizes(algorithm="A2C", n_envs=model.n_envs, n_steps=model.n_steps, total_timesteps=left)
    return Sizes(
        algorithm="PPO",
        n_envs=model.n_envs,
        n_steps=model.n_steps,
        total_timesteps=left,
        batch_size=model.batch_size,
        n_epochs=model.n_epochs,
        stops_early=model.target_kl is not None,
    )
