"""The advantages and targets of a rollout buffer, recomputed from its rewards, values and ends of episodes.

Source: Stable-Baselines3 2.7.0 and 2.9.2, common/buffers.py `compute_returns_and_advantage`; arxiv.org/abs/1506.02438. If a time
limit cuts an episode, the reward of its last step already includes the value of the last observation (common/on_policy_algorithm.py).
"""

from __future__ import annotations

from typing import Any

import torch

from rlstep_hooks.observe.advantages import Estimator, Rewards
from rlstep_hooks.observe.alternative_advantages import Documented


def buffered(model: Any, last_values: Any, dones: Any) -> Documented:
    """One rollout as its buffer holds it.

    Args:
        model: PPO or A2C.
        last_values: The critic's values after the last step.
        dones: Whether each episode ended with the last step.
    """
    buffer = model.rollout_buffer
    starts = torch.as_tensor(buffer.episode_starts).T.double()
    ended = torch.as_tensor(dones).double()[:, None]
    given = Rewards(
        tokens=torch.as_tensor(buffer.rewards).T.clone(),
        values=torch.as_tensor(buffer.values).T.clone(),
        last_values=torch.as_tensor(last_values).detach().cpu().reshape(-1).clone(),
        goes_on=1 - torch.cat([starts[:, 1:], ended], 1),
    )
    return Documented(
        (Estimator(tokens="gae", gamma=float(model.gamma), lam=float(model.gae_lambda)),),
        given,
        torch.as_tensor(buffer.advantages).T.clone(),
        torch.as_tensor(buffer.returns).T.clone(),
    )
