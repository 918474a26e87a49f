"""Rollouts that bring back samples of older ones: TRL's GRPOWithReplayBufferTrainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.observe.patches import Patches


class ReplayWatch:
    """Sees whether a rollout holds samples out of a replay buffer. Which rows they are stays on the device, unread."""

    def __init__(self, trainer: Any) -> None:
        self._buffer = getattr(trainer, "replay_buffer", None)
        self._replayed = False

    def attach(self, patches: Patches) -> None:
        """Place the hook."""
        # The only way out of the buffer (grpo_with_replay_buffer_trainer.py 0.24.0 and 1.0.0, `sample_from_replay_buffer`).
        if hasattr(self._buffer, "sample"):
            patches.wrap(self._buffer, "sample", self._around_sample)

    def _around_sample(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        samples = wrapped(*args, **kwargs)
        self._replayed = self._replayed or bool(samples)
        return samples

    def take(self) -> bool:
        """Whether samples came out of the buffer since the last call."""
        replayed, self._replayed = self._replayed, False
        return replayed
