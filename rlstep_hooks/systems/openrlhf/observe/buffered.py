"""Numbers of a rollout whose samples were put into OpenRLHF's buffer: their advantages, and their distance from the engine."""

from __future__ import annotations

from typing import Any

from rlstep_hooks.record.values import RolloutValues


class BufferedNumbers:
    """Numbers of the samples that were put into the buffer since the last look."""

    def __init__(self) -> None:
        self._advantages: list[float] = []
        self._gaps: list[tuple[float, float, int]] = []

    def add(self, experience: Any) -> None:
        """One part of a rollout, on the CPU."""
        mask = experience.action_mask.bool()
        advantages = experience.advantages[mask]
        self._advantages.append(float(advantages.abs().max()) if advantages.numel() else 0.0)
        if experience.rollout_log_probs is not None and mask.any():
            gaps = (experience.action_log_probs.float() - experience.rollout_log_probs.float()).abs()[mask]
            self._gaps.append((float(gaps.sum()), float(gaps.max()), gaps.numel()))

    def take(self, refresh: int) -> RolloutValues | None:
        """The rollout's numbers; None if nothing was put into the buffer."""
        advantages, gaps = self._advantages, self._gaps
        self._advantages, self._gaps = [], []
        if not advantages:
            return None
        tokens = sum(count for _, _, count in gaps)
        return RolloutValues(
            index=refresh,
            max_abs_advantage=max(advantages),
            sampler_gap_mean=sum(total for total, _, _ in gaps) / tokens if tokens else None,
            sampler_gap_max=max((largest for _, largest, _ in gaps), default=None),
        )
