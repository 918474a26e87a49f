"""The advantages and targets of a rollout buffer, recomputed from its rewards, values and ends of episodes.

Source: Stable-Baselines3 2.7.0 and 2.9.2, common/buffers.py `compute_returns_and_advantage`; arxiv.org/abs/1506.02438. If a time
limit cuts an episode, the reward of its last step already includes the value of the last observation (common/on_policy_algorithm.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.estimators import Estimator, Rewards, fitting, lambda_returns

if TYPE_CHECKING:
    from torch import Tensor


class Buffered:
    """One rollout as its buffer holds it.

    Args:
        model: PPO or A2C.
        last_values: The critic's values after the last step.
        dones: Whether each episode ended with the last step.
    """

    def __init__(self, model: Any, last_values: Any, dones: Any) -> None:
        buffer = model.rollout_buffer
        starts = torch.as_tensor(buffer.episode_starts).T.double()
        ended = torch.as_tensor(dones).double()[:, None]
        self._estimator = Estimator(tokens="gae", gamma=float(model.gamma), lam=float(model.gae_lambda))
        self._given = Rewards(
            tokens=torch.as_tensor(buffer.rewards).T.clone(),
            mask=torch.ones(buffer.rewards.T.shape),
            values=torch.as_tensor(buffer.values).T.clone(),
            last_values=torch.as_tensor(last_values).detach().cpu().reshape(-1).clone(),
            goes_on=1 - torch.cat([starts[:, 1:], ended], 1),
        )
        self._advantages = torch.as_tensor(buffer.advantages).T.clone()
        self._returns = torch.as_tensor(buffer.returns).T.clone()

    def off(self) -> Tensor:
        """The largest distance of advantages and targets from the documented ones, in units of what rounding explains."""
        advantages = self._estimator.of(self._given).off(self._advantages, self._given.mask)
        returns = lambda_returns(self._estimator, self._given).off(self._returns, self._given.mask)
        return torch.maximum(advantages, returns)

    def fit(self) -> str:
        """The known calculation that gives these advantages; empty if there is none."""
        if float(self._estimator.of(self._given).off(self._advantages, self._given.mask)) <= 1:
            return "right advantages, and other targets of the critic than advantages and values add up to"
        return fitting(self._estimator, self._given, self._advantages)
