"""The environment of the tests: one turn, and a reward that needs no model."""

from __future__ import annotations

from typing import Any

from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput


class Digits(BaseTextEnv):
    """Rewards digits in a completion."""

    def __init__(self, env_config: Any = None, extras: dict[str, Any] | None = None) -> None:
        super().__init__()

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """The only turn."""
        reward = sum(ord(character) % 2 for character in action) / 4
        return BaseTextEnvStepOutput(observations=[], reward=reward, done=True, metadata={})
