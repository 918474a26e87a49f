"""The rate that the configured schedule gives for each update, asked of transformers' own function with an optimizer of ours."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from transformers import get_scheduler

if TYPE_CHECKING:
    from skyrl.train.config import OptimizerConfig


@dataclass
class Rates:
    """Rates by update, counted from 0 (skyrl 0.3.0, train/config/config.py `OptimizerConfig`; its schedule ticks once an update).

    Attributes:
        settings: The configuration of the policy's optimizer.
        horizon: Updates of all epochs.
        made: Ticks that were made before the audit began (a resumed run).
    """

    settings: OptimizerConfig
    horizon: int
    made: int = 0
    _known: list[float] = field(default_factory=list)
    _schedule: Any = None

    def __call__(self, rollout: int, update: int) -> float:
        """The rate of an update."""
        while len(self._known) <= self.made + update:
            self._known.append(self._next())
        return self._known[self.made + update]

    def _next(self) -> float:
        if self._schedule is None:
            given = self.settings
            self._optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=given.lr)
            self._schedule = get_scheduler(given.scheduler, self._optimizer, given.num_warmup_steps, self.horizon)
        else:
            self._optimizer.step()
            self._schedule.step()
        return float(self._schedule.get_last_lr()[0])
