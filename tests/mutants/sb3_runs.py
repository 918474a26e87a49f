"""Stable-Baselines3's PPO and A2C: the configurations that mutants are tried in, and the modules that are mutated."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from stable_baselines3 import A2C, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.utils import LinearSchedule

from rlstep_hooks import StepAuditSB3Callback
from tests.mutants.run import Run, Target
from tests.mutants.training import Training, digest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MODULES = (
    "stable_baselines3.ppo.ppo", "stable_baselines3.a2c.a2c", "stable_baselines3.common.on_policy_algorithm",
    "stable_baselines3.common.buffers", "stable_baselines3.common.base_class", "stable_baselines3.common.policies",
    "stable_baselines3.common.distributions", "stable_baselines3.common.torch_layers", "stable_baselines3.common.utils",
)  # fmt: skip

RUNS: dict[str, dict[str, Any]] = {
    "passes": {
        "of": PPO, "on": "CartPole-v1", "timesteps": 300, "n_steps": 25, "batch_size": 16, "n_epochs": 3, "ent_coef": 0.01,
        "clip_range_vf": 0.2, "learning_rate": LinearSchedule(3e-3, 1e-4, 0.5), "clip_range": LinearSchedule(0.2, 0.1, 1.0),
    },
    "continuous": {
        "of": PPO, "on": "Pendulum-v1", "timesteps": 512, "n_steps": 64, "batch_size": 32, "n_epochs": 4, "target_kl": 0.01,
        "normalize_advantage": False, "gamma": 0.9, "gae_lambda": 0.8, "use_sde": True, "sde_sample_freq": 16, "max_grad_norm": 0.3,
    },
    "one update": {
        "of": A2C, "on": "CartPole-v1", "timesteps": 160, "n_steps": 8, "gae_lambda": 0.95, "ent_coef": 0.02,
        "normalize_advantage": True, "use_rms_prop": True,
    },
}  # fmt: skip
"""Each has what another lacks: passes and a truncated mini-batch, clipped values, schedules; a Gaussian, an early stop; one update."""


class Kept(KVWriter):
    """Keeps what is logged."""

    def __init__(self, training: Training) -> None:
        self.training = training

    def write(self, key_values: dict[str, Any], key_excluded: Mapping[str, Any], step: int = 0) -> None:
        self.training.log([key_values])

    def close(self) -> None:
        """Nothing is open."""


def _train(settings: dict[str, Any], folder: Path, callbacks: list[Any], training: Training) -> None:
    given = dict(settings)
    of, on, timesteps = given.pop("of"), given.pop("on"), given.pop("timesteps")
    # Small, so that a mutant is trained in a second; separate towers, so that policy and critic can be told apart.
    model = of(
        "MlpPolicy", make_vec_env(on, 2, seed=1), seed=1, device="cpu", policy_kwargs={"net_arch": {"pi": [8], "vf": [8]}}, **given
    )  # fmt: skip
    model.set_logger(Logger(folder=None, output_formats=[Kept(training)]))
    model.learn(timesteps, callback=callbacks, log_interval=1)
    training.weights = digest(model.policy.state_dict().values())


SB3 = Target(
    modules=MODULES,
    runs=tuple(
        Run(name, functools.partial(_train, settings), functools.partial(StepAuditSB3Callback, log_dir=None, listeners=()))
        for name, settings in RUNS.items()
    ),
)  # fmt: skip
TARGETS = {"sb3": SB3}
