"""How the actions of a rollout were drawn: from the policy's distribution, with gSDE from its mean and noise that is drawn when due.

Source: Stable-Baselines3 2.7.0 and 2.9.2, common/on_policy_algorithm.py `collect_rollouts` (188-203), common/distributions.py `sample`,
`get_noise`; arxiv.org/abs/2005.05719. When callbacks are told of a step, the policy still has the distribution that it acted with.
Where something asked the policy meanwhile, its log-probs of these actions are others than those that were kept, and nothing is said.

Shapes: E environments, A numbers of an action, F features.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from stable_baselines3.common.distributions import (
    CategoricalDistribution,
    DiagGaussianDistribution,
    StateDependentNoiseDistribution,
)

from rlstep_hooks.systems.sb3.observe.followed import has_own_rollouts

if TYPE_CHECKING:
    from torch import Tensor

SURELY_NOT_DRAWN = math.log(1e-12)
"""The log-probability of nothing but the likeliest actions one after another, below which they were not drawn."""
NARROW = 1e-3
"""A standard deviation, relative to the mean, below which a drawn action may be equal to it."""
TOLERANCE = 1e-4


class ActingWatch:
    """Looks at each step of a rollout that is compared."""

    def __init__(self) -> None:
        self._steps: int | None = None
        """Steps of the rollout; None where it is not looked at."""
        self._seen = 0
        """Actions that were looked at."""
        self._off = 0
        """Actions of gSDE that are not its mean plus its noise."""
        self._spread = 0
        """Actions of gSDE whose distribution has another deviation than its features and noise give."""
        self._late = 0
        """Steps of gSDE for which noise was due and not drawn anew, or was drawn anew and not due."""
        self._shared = 0
        """Actions of gSDE that had the noise of other environments too."""
        self._likeliest = 0
        """Actions one after another that are the likeliest ones, in the rollouts before too."""
        self._log_probability = 0.0
        """The log-prob of those actions together."""
        self._noise: Tensor | None = None
        """The noise that the step before used; of the rollout before at its beginning."""

    def begin(self, model: Any, *, compared: bool) -> None:
        """A rollout begins."""
        self._steps = 0 if compared and not has_own_rollouts(model) else None
        self._seen = self._off = self._spread = self._late = self._shared = 0

    def step(self, model: Any, given: dict[str, Any]) -> None:
        """An environment's step, when callbacks are told of it.

        Args:
            model: PPO or A2C.
            given: The local variables of the loop.
        """
        if self._steps is None:
            return
        step, self._steps = self._steps, self._steps + 1
        distribution = model.policy.action_dist
        kinds = (StateDependentNoiseDistribution, DiagGaussianDistribution, CategoricalDistribution)
        if type(distribution) not in kinds:
            return
        with torch.no_grad():
            actions = torch.as_tensor(given["actions"], device=model.device)
            if not torch.equal(distribution.log_prob(actions), given["log_probs"].detach()):
                return
            self._seen += len(actions)
            if isinstance(distribution, StateDependentNoiseDistribution):
                self._look_at_noise(model, distribution, actions, step)
            else:
                self._look_at_mode(distribution, actions)

    def _look_at_mode(self, distribution: Any, actions: Tensor) -> None:
        likeliest = distribution.mode()
        if not bool((actions == likeliest).all()):
            self._likeliest, self._log_probability = 0, 0.0
            return
        self._likeliest += len(actions)
        if isinstance(distribution, CategoricalDistribution):
            self._log_probability += float(distribution.log_prob(likeliest).sum())
        else:
            normal = distribution.distribution
            wide = normal.stddev > NARROW * (1 + normal.mean.abs())
            self._log_probability += SURELY_NOT_DRAWN * bool(wide.any())

    def _look_at_noise(self, model: Any, distribution: Any, actions: Tensor, step: int) -> None:
        features = distribution._latent_sde
        # on_policy_algorithm.py 2.9.2 `collect_rollouts`: `reset_noise(env.num_envs)`.
        self._shared += len(features) * (len(features) != len(distribution.exploration_matrices))
        of_each = len(features) > 1 and len(features) == len(distribution.exploration_matrices)
        noise = distribution.exploration_matrices if of_each else distribution.exploration_mat
        added = torch.einsum("ef,efa->ea", features, noise) if of_each else features @ noise
        documented = distribution.distribution.mean + added
        if distribution.bijector is not None:
            documented = distribution.bijector.forward(documented)
        deviation = (features**2 @ distribution.get_std(model.policy.log_std) ** 2 + distribution.epsilon).sqrt()
        wide = (distribution.distribution.stddev - deviation).abs() > TOLERANCE * deviation
        self._spread += int(wide.any(-1).sum())
        off = (actions - documented).abs() > TOLERANCE * (1 + documented.abs())
        self._off += int(off.any(-1).sum())
        due = step == 0 or (model.sde_sample_freq > 0 and step % model.sde_sample_freq == 0)
        self._late += self._noise is not None and due == (noise is self._noise)
        self._noise = noise

    def take(self) -> dict[str, Any]:
        """What was found of the rollout, as fields of `RolloutValues`."""
        steps, self._steps = self._steps, None
        if not steps or not self._seen:
            return {}
        if self._off:
            return {"actions_off": self._off, "actions_like": "not the mean plus the noise of gSDE"}
        if self._spread:
            return {"actions_off": self._spread, "actions_like": "with another deviation than the noise of gSDE has"}
        if self._late:
            return {
                "actions_off": self._late,
                "actions_like": "with noise of gSDE that was not drawn anew when it was due",
            }
        if self._shared:
            return {"actions_off": self._shared, "actions_like": "with one noise of gSDE for all environments"}
        if self._log_probability < SURELY_NOT_DRAWN:
            return {"actions_off": self._likeliest, "actions_like": "the likeliest ones and nothing else"}
        return {"actions_off": 0}
