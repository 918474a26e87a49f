"""The rewards of a rollout, from the environment's step to the buffer.

Source: Stable-Baselines3 2.7.0 and 2.9.2, common/on_policy_algorithm.py `collect_rollouts`: after the callbacks of a step it adds the
value of the last observation to the reward of an episode that a time limit cut, in the same array, and hands that to the buffer.
Wrappers change rewards before, and callbacks may change that array, on purpose; nothing belongs between it and the buffer.
"""

from __future__ import annotations

from typing import Any

import numpy
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer

OWN = (RolloutBuffer, DictRolloutBuffer)
"""Buffers that keep each reward as it is. A subclass may change them on purpose."""


class RewardsWatch:
    """Holds on to the arrays of rewards of one rollout. Nothing is copied: what is added to them later belongs to them."""

    def __init__(self) -> None:
        self._given: list[Any] | None = None

    def begin(self, *, compared: bool) -> None:
        """A rollout begins."""
        self._given = [] if compared else None

    def step(self, rewards: Any) -> None:
        """An environment's step, (E,) rewards."""
        if self._given is None:
            return
        if self._given and numpy.may_share_memory(self._given[-1], rewards):
            self._given = None  # an environment that uses one array again and again
        else:
            self._given.append(rewards)

    def moved(self, buffer: Any) -> int | None:
        """How many rewards of the complete buffer are others, just before advantages are computed; None where that is not known."""
        given, self._given = self._given, None
        if not given or type(buffer) not in OWN or len(given) != len(buffer.rewards):
            return None
        wanted = numpy.asarray(given).astype(buffer.rewards.dtype)
        same = (wanted == buffer.rewards) | (numpy.isnan(wanted) & numpy.isnan(buffer.rewards))
        return int((~same).sum())
