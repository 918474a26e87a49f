"""Schedules of settings: those of a live scheduler of transformers, and those that are a list of places and values."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

_LAMBDAS = {
    "constant": "_get_constant_lambda",
    "constant_with_warmup": "_get_constant_schedule_with_warmup_lr_lambda",
    "linear": "_get_linear_schedule_with_warmup_lr_lambda",
    "cosine": "_get_cosine_schedule_with_warmup_lr_lambda",
    "cosine_with_min_lr": "_get_cosine_schedule_with_warmup_lr_lambda",
}
"""Kind of schedule -> the function of transformers.optimization that its lambdas call (4.50 to 5.x)."""


def on_lines(setting: Any, at: float) -> float:
    """A setting that is a number, or [[place, value], ...] with straight lines between, and its last value beyond them."""
    if not isinstance(setting, list | tuple):
        return float(setting)
    for (begins, first), (ends, second) in pairwise(setting):
        if begins <= at < ends:
            return float(first + (second - first) * (at - begins) / (ends - begins))
    return float(setting[-1][1])


_FOLLOW_A_METRIC = ("ReduceLROnPlateau", "GreedyLR")
"""Schedulers that transformers' Trainer steps after evaluations, with a metric, and not after updates (trainer.py 5.23.0:1943)."""


def tick_of(scheduler: Any) -> int | None:
    """How many ticks a scheduler has made; None if it keeps no count, or ticks with a metric and not with updates."""
    if any(kind.__name__ in _FOLLOW_A_METRIC for kind in type(scheduler).__mro__):
        return None
    tick = getattr(scheduler, "last_epoch", None)
    return tick if isinstance(tick, int) else None


def rate_schedule(scheduler: Any, kind: str) -> dict[str, Any] | None:
    """The configured schedule, as rule RLS605 reads it; None where the scheduler is not transformers' own of that kind.

    The base rate is the optimizer's, which may be one that the user made.
    """
    lambdas, rates = getattr(scheduler, "lr_lambdas", ()), getattr(scheduler, "base_lrs", ())
    if not lambdas or not rates:
        return None
    function, keywords = getattr(lambdas[0], "func", lambdas[0]), getattr(lambdas[0], "keywords", {})
    own = getattr(function, "__module__", "") == "transformers.optimization" and function.__name__ == _LAMBDAS.get(kind)
    if not own or keywords.get("num_cycles", 0.5) != 0.5:
        return None
    return {
        "kind": kind,
        "base": float(rates[0]),
        "horizon": int(keywords.get("num_training_steps", 0)),
        "warmup": int(keywords.get("num_warmup_steps", 0)),
        "least": float(keywords.get("min_lr_rate") or 0.0),
    }


class ScheduleWatch:
    """Follows the schedule of a live scheduler: a callback may rewrite its base rate or its function, or put another in its place.

    Args:
        kind: The schedule's name in transformers, as configured.
        scheduler: The live scheduler.
    """

    def __init__(self, kind: str, scheduler: Any) -> None:
        self._kind = kind
        self._latest = rate_schedule(scheduler, kind)

    def changed(self, scheduler: Any) -> tuple[dict[str, Any] | None, dict[str, Any] | None] | None:
        """The schedule before and now, if it is another one than at the last call; None where its form is not known."""
        before, now = self._latest, rate_schedule(scheduler, self._kind)
        self._latest = now
        return None if now == before else (before, now)
