"""Tiny runs of RLlib's PPO."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from ray.rllib.algorithms.ppo import PPOConfig

from rlstep_hooks import StepAuditRLlib

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.judge.report import Report


def config(
    env: str = "CartPole-v1",
    runners: int = 0,
    envs: int = 2,
    model: dict[str, Any] | None = None,
    batch_mode: str = "truncate_episodes",
    **training: Any,
) -> Any:
    """128 timesteps for each rollout, three passes in mini-batches of 32; other settings of `training` replace these."""
    sizes = {"train_batch_size_per_learner": 128, "minibatch_size": 32, "num_epochs": 3}
    numbers = {"lr": 3e-3, "entropy_coeff": 0.01, "grad_clip": 0.5}
    return (
        PPOConfig()
        .environment(env)
        .env_runners(num_env_runners=runners, num_envs_per_env_runner=envs, batch_mode=batch_mode)
        .training(**(sizes | numbers | training))
        .rl_module(model_config={"fcnet_hiddens": [16, 16]} | (model or {}))
        .debugging(seed=1, log_level="ERROR")
    )


def learner_of(algorithm: Any) -> Any:
    """The learner in the algorithm's process."""
    return algorithm.learner_group._learner


def trained(
    settings: Any,
    rollouts: int = 3,
    breaks: Callable[[Any], None] = lambda algorithm: None,
    finally_: Callable[[Any], None] = lambda algorithm: None,
    *,
    before: int = 0,
    audited: bool = True,
    **options: Any,
) -> Report:
    """Train with the audit, and return its report.

    Args:
        settings: A configuration.
        rollouts: With the audit.
        breaks: Changes the algorithm before the audit is attached.
        finally_: Looks at the algorithm once the audit has ended.
        before: Rollouts before that.
        audited: Whether there is an audit; there is no report else.
        options: Of the audit.
    """
    algorithm = settings.build_algo()
    try:
        for _ in range(before):
            algorithm.train()
        breaks(algorithm)
        options = {"log_dir": None, "listeners": ()} | options
        audit: Any = StepAuditRLlib(algorithm, **options) if audited else nullcontext()
        with audit:
            for _ in range(rollouts):
                algorithm.train()
        finally_(algorithm)
        return audit.report if audited else None
    finally:
        algorithm.stop()
