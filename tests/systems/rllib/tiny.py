"""Tiny runs of RLlib's PPO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray.rllib.algorithms.ppo import PPOConfig

from rlstep_hooks.systems.rllib.observe.audit import StepAuditRLlib

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.judge.report import Report


def config(env: str = "CartPole-v1", runners: int = 0, envs: int = 2, model: dict[str, Any] | None = None, batch_mode: str = "truncate_episodes", **training: Any) -> Any:
    """128 timesteps for each rollout, in mini-batches of 32; other settings of `training` replace these."""
    sizes = {"train_batch_size_per_learner": 128, "minibatch_size": 32, "num_epochs": 3, "lr": 3e-3, "entropy_coeff": 0.01, "grad_clip": 0.5}
    return (
        PPOConfig()
        .environment(env)
        .env_runners(num_env_runners=runners, num_envs_per_env_runner=envs, batch_mode=batch_mode)
        .training(**(sizes | training))
        .rl_module(model_config={"fcnet_hiddens": [16, 16]} | (model or {}))
        .debugging(seed=1, log_level="ERROR")
    )


def trained(settings: Any, rollouts: int = 3, breaks: Callable[[Any], None] | None = None, before: int = 0, **options: Any) -> Report:
    """Train with the audit; `breaks` changes the algorithm before, and `before` rollouts are made without it."""
    algorithm = settings.build_algo()
    try:
        for _ in range(before):
            algorithm.train()
        if breaks is not None:
            breaks(algorithm)
        with StepAuditRLlib(algorithm, log_dir=None, listeners=(), **options) as audit:
            for _ in range(rollouts):
                algorithm.train()
        return audit.report
    finally:
        algorithm.stop()
