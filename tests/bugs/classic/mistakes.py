"""Mistakes of real bugs in Stable-Baselines3 and in loops like it, which no corpus has, from the first rollout on."""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.bugs.undo import rewritten

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


@dataclass(frozen=True)
class Mistake:
    """How a bug is made on a model before it learns, whose settings are those of the run without it too."""

    apply: Callable[[Any], None]
    settings: dict[str, Any] = field(default_factory=dict)


def values_of_the_last_observation_but_one(model: Any) -> None:
    """The rollout's last value is that of the observation before the last one."""
    compute, forward = model.rollout_buffer.compute_returns_and_advantage, model.policy.forward
    told: list[torch.Tensor] = []

    def remembering(*args: Any, **kwargs: Any) -> Any:
        result = forward(*args, **kwargs)
        told[:] = [result[1]]
        return result

    def computed(last_values: torch.Tensor, dones: Any) -> None:
        compute(last_values=told[0], dones=dones)

    model.policy.forward, model.rollout_buffer.compute_returns_and_advantage = remembering, computed


def dones_of_the_step_itself(model: Any) -> None:
    """The buffer gets with each step whether an episode ended there, where it should get whether one began."""
    model.collect_rollouts = types.MethodType(
        rewritten(
            type(model).collect_rollouts,
            type(model),
            "self._last_episode_starts,  # type: ignore[arg-type]",
            "dones,",
        ),
        model,
    )


def targets_of_values_alone(model: Any) -> None:
    """The critic's targets are made of advantages that are still 0: they are the values themselves."""
    compute = model.rollout_buffer.compute_returns_and_advantage

    def computed(*args: Any, **kwargs: Any) -> None:
        compute(*args, **kwargs)
        model.rollout_buffer.returns = model.rollout_buffer.values.copy()

    model.rollout_buffer.compute_returns_and_advantage = computed


def truncated_episodes_end(model: Any) -> None:
    """An episode that a time limit cut off counts as one that ended by itself."""
    model.collect_rollouts = types.MethodType(
        rewritten(
            type(model).collect_rollouts,
            type(model),
            'and infos[idx].get("TimeLimit.truncated", False)',
            "and False",
        ),
        model,
    )


def rewards_of_the_step_before(model: Any) -> None:
    """Each slot of the buffer has the reward that came before its observation."""
    import numpy

    add = model.rollout_buffer.add
    before = numpy.zeros(model.n_envs)

    def added(observation: Any, action: Any, reward: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal before
        add(observation, action, before, *args, **kwargs)
        before = numpy.copy(reward)

    model.rollout_buffer.add = added


def advantages_of_rewards_alone(model: Any) -> None:
    """An advantage is the reward of its step less the value, and not the return less the value."""
    compute = model.rollout_buffer.compute_returns_and_advantage

    def computed(*args: Any, **kwargs: Any) -> None:
        compute(*args, **kwargs)
        buffer = model.rollout_buffer
        buffer.advantages = buffer.rewards - buffer.values
        buffer.returns = buffer.advantages + buffer.values

    model.rollout_buffer.compute_returns_and_advantage = computed


def advantages_of_the_moved_critic(model: Any) -> None:
    """Before each further pass over a rollout advantages and targets are computed anew, with the critic as it has become."""
    import torch

    buffer = model.rollout_buffer
    get = buffer.get

    def gotten(*args: Any, **kwargs: Any) -> Any:
        if buffer.generator_ready:
            steps, rows = buffer.rewards.shape
            with torch.no_grad():
                values = model.policy.predict_values(torch.as_tensor(buffer.observations)).view(rows, steps)
                end = model.policy.predict_values(torch.as_tensor(model._last_obs))
            again = type(buffer)(
                steps, buffer.observation_space, buffer.action_space, "cpu", buffer.gae_lambda, buffer.gamma, rows
            )
            again.rewards, again.episode_starts, again.values = buffer.rewards, buffer.episode_starts, values.numpy().T
            again.compute_returns_and_advantage(end, model._last_episode_starts)
            buffer.advantages = again.swap_and_flatten(again.advantages)
            buffer.returns = again.swap_and_flatten(again.returns)
        return get(*args, **kwargs)

    buffer.get = gotten


def entropy_of_the_wrong_sign(model: Any) -> None:
    """The estimate of an entropy that has no formula is the mean log-prob, and not its negative."""
    model.train = types.MethodType(
        rewritten(
            type(model).train, type(model), "entropy_loss = -th.mean(-log_prob)", "entropy_loss = -log_prob.mean()"
        ),
        model,
    )


def squashed_actions_without_bounds(model: Any) -> None:
    """The environment gets squashed actions, of -1 to 1, in the place of what they are within its bounds."""
    model.collect_rollouts = types.MethodType(
        rewritten(
            type(model).collect_rollouts,
            type(model),
            "self.policy.unscale_action(clipped_actions)",
            "np.clip(actions, self.action_space.low, self.action_space.high)",
        ),
        model,
    )


def observations_after_the_actions(model: Any) -> None:
    """Each slot of the buffer has the observation that came after its action."""
    model.collect_rollouts = types.MethodType(
        rewritten(
            type(model).collect_rollouts,
            type(model),
            "self._last_obs,  # type: ignore[arg-type]",
            "new_obs,",
        ),
        model,
    )


SHORT_EPISODES: dict[str, Any] = {"limit": 10}
"""Episodes that a time limit ends."""
WITHOUT_FORMULA: dict[str, Any] = {
    "env": "Pendulum-v1",
    "use_sde": True,
    "policy_kwargs": {"squash_output": True},
    "ent_coef": 0.01,
}
"""Actions that are squashed, whose entropy is estimated."""

MISTAKES = {
    mistake.apply.__name__: mistake
    for mistake in (
        Mistake(values_of_the_last_observation_but_one),
        Mistake(dones_of_the_step_itself),
        Mistake(targets_of_values_alone),
        Mistake(truncated_episodes_end, SHORT_EPISODES),
        Mistake(rewards_of_the_step_before),
        Mistake(advantages_of_rewards_alone),
        Mistake(advantages_of_the_moved_critic),
        Mistake(entropy_of_the_wrong_sign, WITHOUT_FORMULA),
        Mistake(squashed_actions_without_bounds, WITHOUT_FORMULA),
        Mistake(observations_after_the_actions),
    )
}
