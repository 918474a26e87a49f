"""Lags of a run whose order of events repeats: how many updates lie between a refresh and the forwards that use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.planning.schedule import lag_pattern

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import OldLogProbSource

Pattern = tuple[tuple[int, ...], ...]


def lags_of_updates(per_rollout: int, per_update: int, rollouts_per_cycle: int, reuse_epochs: int) -> Pattern:
    """Lags of every micro-batch, update by update, over one period; see `rlstep_hooks.planning.schedule.lag_pattern`."""
    return tuple(map(tuple, lag_pattern(per_rollout, per_update, rollouts_per_cycle, reuse_epochs)))


def lags_in(pattern: Pattern) -> tuple[int, ...]:
    """Every lag that occurs, ascending."""
    return tuple(sorted({lag for window in pattern for lag in window}))


def ratio_one_updates(pattern: Pattern, source: OldLogProbSource) -> tuple[int, ...]:
    """Updates of the period whose ratio is 1 by construction: all if the old log-probs are the current ones, else those without lag."""
    return tuple(index for index, window in enumerate(pattern, 1) if source == "detach" or not any(window))


FUNCTIONS = {"lags_of_updates": lags_of_updates, "lags_in": lags_in, "ratio_one_updates": ratio_one_updates}
"""The functions of this module that expressions of declarations may call, by name."""
