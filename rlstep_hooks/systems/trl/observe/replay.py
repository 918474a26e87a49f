"""Rollouts that bring back samples of older ones: TRL's GRPOWithReplayBufferTrainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlstep_hooks.observe.hooks import Call, Hooks


class ReplayWatch:
    """Sees whether a rollout holds samples out of a replay buffer. Which rows they are stays on the device, unread."""

    def __init__(self, trainer: Any) -> None:
        self._buffer = getattr(trainer, "replay_buffer", None)
        self._replayed = False

    def attach(self, hooks: Hooks) -> None:
        """Place the hook."""
        # The only way out of the buffer (grpo_with_replay_buffer_trainer.py 0.24.0 and 1.0.0, `sample_from_replay_buffer`).
        if hasattr(self._buffer, "sample"):
            hooks.wrap(self._buffer, "sample", after=self._sampled, topics=("samples", "refresh"))

    def _sampled(self, call: Call) -> None:
        self._replayed = self._replayed or bool(call.result)

    def take(self) -> bool:
        """Whether samples came out of the buffer since the last call."""
        replayed, self._replayed = self._replayed, False
        return replayed
