"""The timesteps of a rollout: between the policy and the environment, from both to the buffer, and from there to the loss.

Source: Stable-Baselines3 2.7.0 and 2.9.2, common/on_policy_algorithm.py `collect_rollouts`: the environment gets the policy's actions
within the bounds of its space, and what it returns is the next observation. After the callbacks of a step the loop hands the
observation, the action, the reward, the end of the episode before and the critic's value to the buffer. Before that it adds the value
of the last observation to the reward of an episode that a time limit cut, in the same array. Wrappers and callbacks may change these
arrays before, on purpose; nothing belongs between them and the buffer.

Shapes: T timesteps of each of E environments; B samples of a mini-batch; K numbers of an observation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy
import torch
from gymnasium import spaces
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from torch import Tensor

from rlstep_hooks.systems.sb3.observe.followed import has_own_rollouts, keeps_numbers

PER_OBSERVATION = 64
"""Numbers of each observation that are kept, of each part of one that is a dictionary."""
MOST_ENDED = 16
"""Episodes of a rollout whose last reward is computed again; of those that a time limit cut, and of the others."""
HALF = 0.5
ROUNDING = 1e-5
"""The largest error of a sum and a product in float32, relative to their terms."""

NOT_BOOTSTRAPPED = "the last reward of an episode that a time limit cut is without the value of its last observation"


@dataclass(frozen=True)
class Ended:
    """An episode that ended."""

    step: int
    environment: int
    reward: float
    """The reward of the episode's last timestep, before anything was added to it."""
    last: Any = None
    """The last observation, where a time limit cut the episode."""


class TimestepsWatch:
    """Holds on to what one rollout was made from.

    The arrays of rewards are not copied: what is added to them later belongs to them.
    """

    def __init__(self) -> None:
        self._rewards: list[Any] | None = None
        self._steps: list[dict[str, Any]] | None = None
        self._ended: list[Ended] = []
        self._between: dict[str, int] = {}
        """Timesteps that differ between the policy and the environment, by what differs."""
        self._returned: Any = None
        """What the environment returned at the step before, as it was then."""
        self._acted: Any = None
        """The actions that the environment got for this step."""
        self._inputs: dict[str, Tensor] = {}

    def begin(self, model: Any, *, compared: bool) -> None:
        """A rollout begins."""
        self._rewards = [] if compared else None
        known = keeps_numbers(model) and not has_own_rollouts(model)
        self._steps = [] if compared and known else None
        self._ended, self._between, self._returned, self._acted = [], {}, None, None
        self._inputs = {}

    def act(self, actions: Any) -> None:
        """The environment gets actions, (E, ...)."""
        if self._steps is not None:
            self._acted = numpy.array(actions)

    def step(self, model: Any, given: dict[str, Any]) -> None:
        """An environment's step, when callbacks are told of it.

        Args:
            model: PPO or A2C.
            given: The local variables of the loop.
        """
        rewards = given["rewards"]
        if self._rewards and numpy.may_share_memory(self._rewards[-1], rewards):
            self._rewards = None  # an environment that uses one array again and again
        if self._rewards is not None:
            self._rewards.append(rewards)
        if self._steps is not None:
            # The environment may use its arrays again.
            self._steps.append(
                {
                    "observations": picked(model._last_obs),
                    "actions": numpy.array(given["actions"]).reshape(model.n_envs, -1),
                    "values": given["values"].detach().reshape(-1),
                    "ends of episodes": self._began(model._last_episode_starts),
                    "done": numpy.array(given["dones"]),
                }
            )
            self._note_ended(given, rewards)
            self._look_between(model, given)

    def _look_between(self, model: Any, given: dict[str, Any]) -> None:
        """What the environment got is the policy's action within its bounds, and what it returned is what the policy sees next.

        The first observation of a rollout is left alone: between two rollouts a callback may begin an episode anew.
        """
        assert self._steps is not None  # asked by the caller
        passed = {}
        if self._acted is not None and _bounds_actions(model):
            passed["actions for the environment"] = self._acted, _within(model, given["actions"])
        if self._returned is not None:
            passed["observations"] = self._steps[-1]["observations"], self._returned
        for name, (observed, documented) in passed.items():
            differing = _differ(numpy.asarray(observed), documented).reshape(model.n_envs, -1).any(-1)
            self._between[name] = self._between.get(name, 0) + int(differing.sum())
        self._acted, self._returned = None, picked(given["new_obs"])

    def _note_ended(self, given: dict[str, Any], rewards: Any) -> None:
        """Episodes that ended with this step, before the loop adds the value of the last observation to the reward of those that a time
        limit cut."""
        assert self._steps is not None  # asked by the caller
        for environment in numpy.flatnonzero(given["dones"]):
            info = given["infos"][environment]
            last = info.get("terminal_observation") if info.get("TimeLimit.truncated", False) else None
            if sum((of.last is None) == (last is None) for of in self._ended) < MOST_ENDED:
                place = len(self._steps) - 1, int(environment)
                self._ended.append(Ended(*place, float(rewards[environment]), last))

    def _with_other_last(self, model: Any) -> tuple[int, str]:
        """Count the episodes whose last reward in the buffer is not its own, plus gamma times the value of its last
        observation where a time limit cut it.

        The policy is asked once more where it is Stable-Baselines3's own, which computes the same each time.

        Returns:
            How many, and what is wrong with them; empty where that is not known.
        """
        policy = model.policy
        own = all(type(of).__module__.startswith("stable_baselines3.") for of in (policy, policy.features_extractor))
        wrong, like = 0, ""
        for ended in self._ended:
            value = 0.0
            if ended.last is not None:
                if not own:
                    continue
                with torch.no_grad():
                    value = float(policy.predict_values(policy.obs_to_tensor(ended.last)[0])[0])
            wanted = ended.reward + model.gamma * value
            kept = float(model.rollout_buffer.rewards[ended.step, ended.environment])
            rounding = ROUNDING * (abs(ended.reward) + abs(value) + 1)
            if abs(kept - wanted) > rounding:
                wrong += 1
                if ended.last is not None and abs(kept - ended.reward) <= rounding:
                    like = like or NOT_BOOTSTRAPPED
        return wrong, like

    def _began(self, starts: Any) -> Any:
        """Whether an episode began with this timestep, (E,): one did where the last step ended one."""
        return self._steps[-1]["done"] if self._steps else numpy.array(starts)

    def moved(self, model: Any) -> dict[str, Any]:
        """Compare the complete buffer, just before advantages are computed from it. Gives fields of `RolloutValues`."""
        buffer = model.rollout_buffer
        rewards, steps = self._rewards, self._steps
        self._rewards = self._steps = None
        found: dict[str, Any] = {}
        if rewards and keeps_numbers(model) and len(rewards) == len(buffer.rewards):
            found["rewards_moved"] = int(_differ(numpy.asarray(rewards), buffer.rewards).sum())
        if self._ended and keeps_numbers(model) and steps and len(steps) == len(buffer.rewards):
            others, found["rewards_like"] = self._with_other_last(model)
            found["rewards_moved"] = found.get("rewards_moved", 0) + others
        self._ended = []
        if not steps or len(steps) != len(buffer.rewards):
            return found
        kept = {
            "observations": picked(buffer.observations, 2),
            "actions": buffer.actions,
            "values": buffer.values,
            "ends of episodes": buffer.episode_starts,
        }
        between = next((name for name, count in self._between.items() if count), "")
        if between:
            return found | {"timesteps_moved": self._between[between], "timesteps_part": between}
        given = {name: _stacked([step[name] for step in steps]).astype(of.dtype) for name, of in kept.items()}
        self._inputs = {name: _by_place(given[name]) for name in ("observations", "actions")}
        differing = {name: _differ(given[name], of).reshape(*of.shape[:2], -1).any(-1) for name, of in kept.items()}
        part = next((name for name, where in differing.items() if where.any()), "")
        timesteps = numpy.logical_or.reduce(list(differing.values()))
        return found | {"timesteps_moved": int(timesteps.sum()), "timesteps_part": part}

    def differing(self, places: Any, observations: Any, actions: Tensor) -> Tensor | None:
        """How many numbers of a mini-batch are not those of its samples, (); None where that is not known.

        Args:
            places: (B,) the samples of the mini-batch.
            observations: (B, ...) those whose loss is computed.
            actions: (B,) or (B, A) theirs.
        """
        if not self._inputs or len(places) != len(actions):
            return None
        device = actions.device
        self._inputs = {name: of.to(device) for name, of in self._inputs.items()}
        rows = torch.as_tensor(places, device=device)
        given = {"observations": _picked_on_device(observations), "actions": actions.reshape(len(actions), -1)}
        counts = []
        for name, of in given.items():
            known = self._inputs[name][rows]
            both_nan = known.isnan() & of.float().isnan()
            counts.append(((known != of.float()) & ~both_nan).sum())
        return torch.stack(counts).sum()


def _bounds_actions(model: Any) -> bool:
    """Whether the loop and the policy are Stable-Baselines3's own: those of sb3-contrib bound actions otherwise."""
    own = type(model).collect_rollouts is OnPolicyAlgorithm.collect_rollouts
    return own and type(model.policy).__module__.startswith("stable_baselines3.")


def _within(model: Any, actions: Any) -> Any:
    """Actions as the environment should get them: those of a box are scaled from [-1, 1] to its bounds if the policy squashes them,
    else cut at the bounds."""
    space = model.action_space
    if not isinstance(space, spaces.Box):
        return actions
    if (model.policy_kwargs or {}).get("squash_output", False):
        return space.low + HALF * (actions + 1.0) * (space.high - space.low)
    return numpy.minimum(numpy.maximum(actions, space.low), space.high)


def picked(observations: Any, leading: int = 1) -> Any:
    """Some numbers of each observation, float32, copied.

    Args:
        observations: (E, ...), or a dictionary of such.
        leading: Dimensions before those of an observation.

    Returns:
        (E, K), with the parts of a dictionary beside each other.
    """
    parts = [observations[name] for name in sorted(observations)] if isinstance(observations, dict) else [observations]
    flat = [numpy.asarray(part) for part in parts]
    rows = [part.reshape(*part.shape[:leading], -1) for part in flat]
    return numpy.concatenate([row[..., :: _stride(row.shape[-1])][..., :PER_OBSERVATION] for row in rows], -1).astype(
        numpy.float32
    )


def _picked_on_device(observations: Any) -> Tensor:
    """The picked elements of observations that are the policy's tensors, (B, K)."""
    parts = [observations[name] for name in sorted(observations)] if isinstance(observations, dict) else [observations]
    rows = [part.reshape(len(part), -1) for part in parts]
    return torch.cat([row[:, :: _stride(row.shape[1])][:, :PER_OBSERVATION].float() for row in rows], 1)


def _stride(numbers: int) -> int:
    return max(numbers // PER_OBSERVATION, 1)


def _stacked(steps: list[Any]) -> Any:
    """(T, E) or (T, E, K)."""
    return torch.stack(steps).cpu().numpy() if isinstance(steps[0], Tensor) else numpy.stack(steps)


def _by_place(given: Any) -> Tensor:
    """(E * T, K) float32: all timesteps of the first environment, then of the next, as the buffer numbers them."""
    return torch.as_tensor(given.swapaxes(0, 1).reshape(-1, given.shape[-1]).astype(numpy.float32))


def _differ(given: Any, kept: Any) -> Any:
    """Where numbers differ once they have the buffer's dtype."""
    wanted = given.astype(kept.dtype)
    with numpy.errstate(invalid="ignore"):
        return (wanted != kept) & ~((wanted != wanted) & (kept != kept))
