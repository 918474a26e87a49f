"""The learning rate that a configured schedule gives at each tick.

Source: `planning.rate_schedules` for those of transformers; Stable-Baselines3 2.7.0 and 2.9.2, common/utils.py LinearSchedule ("line").
"""

from __future__ import annotations

from typing import Any

import msgspec

from rlstep_hooks.planning.rate_schedules import RateShape


class RateSchedule(msgspec.Struct, frozen=True):
    """A learning-rate schedule, as a run configured it."""

    kind: str
    """The name of the schedule in transformers, or "line" for one that goes straight from `base` to `least` times it."""
    base: float
    """The rate that the schedule multiplies."""
    horizon: float
    """The number of ticks that the schedule was built for."""
    warmup: int = 0
    """Ticks of the warm-up."""
    least: float = 0.0
    """The smallest factor, for "cosine_with_min_lr"; the last one, for "line"."""
    first: float = 0.0
    """For "line": the place of the first tick."""

    def rate(self, tick: int) -> float:
        """The rate of an update at this position of the scheduler."""
        return self.base * self._factor(tick)

    def _factor(self, tick: int) -> float:
        if self.kind == "line":
            return 1.0 + (self.least - 1.0) * min(1.0, (tick + self.first) / self.horizon)
        options = {"min_lr_rate": self.least} if self.kind == "cosine_with_min_lr" else {}
        return RateShape(self.kind, self.horizon, self.warmup, self.base, options).factor(tick)


COVERED = ("constant", "constant_with_warmup", "linear", "cosine", "cosine_with_min_lr", "line")
"""Kinds of schedules whose rate is computed."""


def read_schedule(facts: dict[str, Any], name: str = "lr_schedule") -> RateSchedule | None:
    """The schedule that an observer read from a run; None where it did not, or for a kind that is not covered.

    Args:
        facts: The facts of the run.
        name: The fact that has it.
    """
    given = facts.get(name)
    if not isinstance(given, dict) or given.get("kind") not in COVERED:
        return None
    return msgspec.convert(given, RateSchedule)


def nearly(horizon: int, ticks: int) -> bool:
    """Whether a schedule is built for nearly the ticks of the run: horizons that round otherwise than the run, or leave its last
    rollout out, are a few ticks off, which is true, and no fault."""
    return abs(horizon - ticks) * 20 < ticks
