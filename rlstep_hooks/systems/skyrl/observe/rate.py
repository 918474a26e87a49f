"""The rate that the configured schedule gives for each update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlstep_hooks.planning.rate_schedules import RateShape

if TYPE_CHECKING:
    from skyrl.train.config import OptimizerConfig


@dataclass(frozen=True)
class Rates:
    """Rates by update, counted from 0 (skyrl 0.3.0, train/config/config.py `OptimizerConfig`; its schedule ticks once an update).

    SkyRL hands transformers the schedule's name, its warm-up and its length, and no other option (fsdp_strategy.py:267), so that only
    kinds whose formula is known get through.

    Attributes:
        settings: The configuration of the policy's optimizer.
        horizon: Updates of all epochs.
        made: Ticks that were made before the audit began (a resumed run).
    """

    settings: OptimizerConfig
    horizon: int
    made: int = 0

    def __call__(self, rollout: int, update: int) -> float:
        """The rate of an update."""
        del rollout
        given = self.settings
        shape = RateShape(given.scheduler, self.horizon, given.num_warmup_steps, given.lr)
        return float(given.lr * shape.factor(self.made + update))
