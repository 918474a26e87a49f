"""What SkyRL documents of its advantages, as the estimators of `rlstep_hooks.observe.advantages`.

Source: skyrl 0.3.0, skyrl/train/config/config.py `AlgorithmConfig`; GRPO (arxiv.org/abs/2402.03300), RLOO (2402.14740), REINFORCE++
(2501.03262).
"""

from __future__ import annotations

from typing import Any

from rlstep_hooks.observe.advantages import Estimator

STABILISER = 1e-6
"""Added to the standard deviation of a group."""


def documented(algorithm: Any) -> Estimator | str:
    """The configured estimator, or why its advantages are not compared."""
    name = algorithm.advantage_estimator
    if algorithm.use_kl_in_reward and algorithm.kl_ctrl.type != "fixed":
        return f"kl_ctrl.type={algorithm.kl_ctrl.type} is not followed"
    if name == "grpo" and algorithm.grpo_norm_by_std:
        return Estimator(baseline="mean", scale="group", stabiliser=STABILISER)
    if name == "grpo":
        return Estimator(baseline="mean")
    if name == "rloo":
        return Estimator(baseline="others")
    if name == "reinforce++":
        return Estimator(tokens="returns", gamma=algorithm.gamma, whitening="full", unbiased=True)
    return f"advantage_estimator={name} is not followed"
