"""Schedules of settings: those of a live scheduler of transformers, and those that are a list of places and values."""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

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


_NUMBERS = (float, int)


class RatesOfStep(NamedTuple):
    """The learning rates of an optimizer's groups at one step.

    A rate on a device stays there, since reading it would wait for the device; it is a copy, since schedulers write to it.
    """

    largest: float | Tensor
    """The largest rate: a group that is kept still by a rate of 0 does not make it 0."""
    least_moving: float | Tensor
    """The least rate of those groups that are meant to move (`keeps_still`); of all, where none is."""
    plain: tuple[float, ...] | None
    """The rates of all groups; None where one is held in a tensor."""

    @property
    def largest_number(self) -> float | None:
        """The largest rate where it can be read without waiting for a device."""
        return self.largest if isinstance(self.largest, float) else None


def rates_of(optimizer: Any) -> RatesOfStep:
    """Read the learning rates of an optimizer's groups, once for all that looks at them."""
    groups = optimizer.param_groups
    rates = [group["lr"] for group in groups]
    moving = [rate for group, rate in zip(groups, rates, strict=True) if not keeps_still(group)] or rates
    if {*map(type, rates)} == {float}:  # as almost always
        return RatesOfStep(max(rates), min(moving), tuple(rates))
    plain = all(isinstance(rate, _NUMBERS) for rate in rates)
    return RatesOfStep(_extreme(rates, largest=True), _extreme(moving, largest=False), tuple(rates) if plain else None)


def keeps_still(group: dict[str, Any]) -> bool:
    """Whether a group of parameters is kept still on purpose: the rate that its schedule multiplies is 0."""
    base = group.get("initial_lr", group["lr"])
    return isinstance(base, _NUMBERS) and base == 0


def _extreme(rates: list[Any], *, largest: bool) -> float | Tensor:
    devices = [rate.device for rate in rates if isinstance(rate, Tensor) and rate.is_cuda]
    if not devices:
        numbers = [float(rate) for rate in rates]
        return max(numbers) if largest else min(numbers)
    held = [
        rate.detach().reshape(()).to(devices[0], torch.float32)
        if isinstance(rate, Tensor) and rate.is_cuda
        else torch.full((), float(rate), device=devices[0])
        for rate in rates
    ]
    return torch.stack(held).amax() if largest else torch.stack(held).amin()


_FOLLOW_A_METRIC = ("ReduceLROnPlateau", "GreedyLR")
"""Schedulers that transformers' Trainer steps after evaluations, with a metric, and not after updates (trainer.py 5.23.0:1943)."""


@functools.cache
def _follows_a_metric(kind: type) -> bool:
    return any(of.__name__ in _FOLLOW_A_METRIC for of in kind.__mro__)


def tick_of(scheduler: Any) -> int | None:
    """How many ticks a scheduler has made; None if it keeps no count, or ticks with a metric and not with updates."""
    kind: type = type(scheduler)
    if _follows_a_metric(kind):
        return None
    tick = getattr(scheduler, "last_epoch", None)
    return tick if isinstance(tick, int) else None


def rate_schedule(scheduler: Any, kind: str) -> dict[str, Any] | None:
    """The configured schedule, as rule RLS605 reads it; None where the scheduler is not transformers' own of that kind.

    The base rate is the largest of the optimizer's groups, which may be ones that the user made.
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
        "base": max(float(rate) for rate in rates),
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
        self._made_of = _made_of(scheduler)

    def changed(self, scheduler: Any) -> tuple[dict[str, Any] | None, dict[str, Any] | None] | None:
        """The schedule before and now, if it is another one than at the last call; None where its form is not known."""
        if _is_made_of(scheduler, self._made_of):
            return None
        made_of = _made_of(scheduler)
        before, now = self._latest, rate_schedule(scheduler, self._kind)
        self._made_of, self._latest = made_of, now
        return before, now


_MadeOf = tuple[Any, list[tuple[Any, dict[str, Any]]], list[Any]]
"""What decides the rates of a scheduler that multiplies base rates by functions of its ticks: each function with its keywords, and the
base rates. Of another kind it is the scheduler itself."""


def _made_of(scheduler: Any) -> _MadeOf:
    functions = getattr(scheduler, "lr_lambdas", None)
    if not functions:
        return scheduler, [], []
    return None, [(getattr(of, "func", of), dict(_keywords(of))) for of in functions], [*scheduler.base_lrs]


def _is_made_of(scheduler: Any, known: _MadeOf) -> bool:
    """Whether `_made_of` would give this, which is asked at each update."""
    one, functions, bases = known
    now = getattr(scheduler, "lr_lambdas", None)
    if not now:
        return scheduler is one
    if len(now) != len(functions) or [*scheduler.base_lrs] != bases:
        return False
    for live, (function, keywords) in zip(now, functions, strict=True):
        if getattr(live, "func", live) != function or _keywords(live) != keywords:
            return False
    return True


def _keywords(function: Any) -> dict[str, Any]:
    return getattr(function, "keywords", None) or {}
