"""The documented schedules of a learning rate: the factor that each multiplies the base rate by, at each tick.

Source: transformers, "Optimization" in its documentation, and optimization.py of 4.51.3 and 5.23.0, whose `get_scheduler` makes them by
name. A schedule that follows a metric (`reduce_lr_on_plateau`, `greedy`) is no function of the ticks, and is not here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec


class RateShape(msgspec.Struct, frozen=True):
    """What a configuration says of a schedule."""

    kind: str
    """The schedule's name in transformers."""
    horizon: float
    """The number of ticks that it is built for."""
    warmup: int = 0
    """Ticks of the warm-up."""
    base: float = 1.0
    """The rate that is multiplied; some options are rates and not factors."""
    options: Mapping[str, Any] = {}
    """Arguments of this kind of schedule (`lr_scheduler_kwargs` of a trainer), by their names in transformers."""

    def factor(self, tick: int) -> float:
        """The factor at a tick.

        Raises:
            KeyError: if the kind is not known (`is_documented`), or an option without a default is missing.
        """
        return _FACTORS[self.kind](self, tick)

    @property
    def after_warmup(self) -> float:
        """The ticks from the end of the warm-up to the horizon; 1 where there is none."""
        return max(1, self.horizon - self.warmup)

    @property
    def least(self) -> float:
        """The factor that a cosine ends at: an option gives it as a factor, or as a rate."""
        rate = self.options.get("min_lr")
        return float(self.options.get("min_lr_rate") or 0.0) if rate is None else float(rate) / self.base

    def cosine(self, progress: float) -> float:
        """A cosine that falls from 1 to its least factor: half a wave, if nothing else is asked for."""
        waves = float(self.options.get("num_cycles", 0.5))
        return _above(self.least, _falling("cosine", progress, waves))


def is_documented(shape: RateShape) -> bool:
    """Whether the factor of this schedule is known here, with each of its options."""
    return shape.kind in _FACTORS and shape.options.keys() <= _OPTIONS.get(shape.kind, frozenset())


def _constant(shape: RateShape, tick: int) -> float:
    del shape, tick
    return 1.0


def _warmed_up(decay: Callable[[RateShape, int], float]) -> Callable[[RateShape, int], float]:
    """A straight line from 0 to 1, and what follows it."""

    def factor(shape: RateShape, tick: int) -> float:
        return tick / max(1, shape.warmup) if tick < shape.warmup else decay(shape, tick)

    return factor


def _line(shape: RateShape, tick: int) -> float:
    return max(0.0, (shape.horizon - tick) / shape.after_warmup)


def _cosine(shape: RateShape, tick: int) -> float:
    return shape.cosine((tick - shape.warmup) / shape.after_warmup)


def _restarted_cosine(shape: RateShape, tick: int) -> float:
    progress = (tick - shape.warmup) / shape.after_warmup
    wave = float(shape.options.get("num_cycles", 1)) * progress % 1.0
    return 0.0 if progress >= 1.0 else max(0.0, 0.5 * (1.0 + math.cos(math.pi * wave)))


def _power(shape: RateShape, tick: int) -> float:
    last = float(shape.options.get("lr_end", 1e-7)) / shape.base
    if tick > shape.horizon:
        return last
    left = 1.0 - (tick - shape.warmup) / (shape.horizon - shape.warmup)
    return last + (1.0 - last) * math.pow(left, float(shape.options.get("power", 1.0)))


def _inverse_root(shape: RateShape, tick: int) -> float:
    scale = shape.warmup or 10_000
    return 1.0 / math.sqrt((tick + scale - shape.warmup) / scale)


def _cosine_after_raised_warmup(shape: RateShape, tick: int) -> float:
    """A warm-up that does not begin at 0, and a cosine that is one tick ahead."""
    if tick >= shape.warmup:
        return shape.cosine((tick - shape.warmup + 1) / shape.after_warmup)
    first = shape.options.get("warmup_lr_rate")
    if first is None:
        return (tick + 1) / max(1, shape.warmup)
    return float(first) + (1.0 - float(first)) * tick / max(1, shape.warmup - 1)


def _stable_between(shape: RateShape, tick: int) -> float:
    """A warm-up, a stage at 1, and a decay; the least factor lies below both."""
    falling_ticks = int(shape.options["num_decay_steps"])
    stable_ticks = shape.options.get("num_stable_steps")
    falls_from = shape.horizon - falling_ticks if stable_ticks is None else shape.warmup + int(stable_ticks)
    least = float(shape.options.get("min_lr_ratio", 0.0))
    if tick < shape.warmup:  # each form of a warm-up is that of a decay, the other way round
        form = str(shape.options.get("warmup_type", "linear"))
        return _above(least, _falling(form, 1.0 - tick / max(1, shape.warmup), 0.5))
    if tick < falls_from:
        return 1.0
    if tick >= falls_from + falling_ticks:
        return least
    form, waves = str(shape.options.get("decay_type", "cosine")), float(shape.options.get("num_cycles", 0.5))
    return _above(least, _falling(form, (tick - falls_from) / max(1, falling_ticks), waves))


def _falling(form: str, progress: float, waves: float) -> float:
    """From 1 to 0 in one of three forms; `waves` are those of a cosine."""
    if form == "linear":
        return 1.0 - progress
    if form == "cosine":
        return 0.5 * (1.0 + math.cos(2.0 * math.pi * waves * progress))
    if form == "1-sqrt":
        return 1.0 - math.sqrt(progress)
    raise KeyError(form)


def _above(least: float, factor: float) -> float:
    """A factor between 0 and 1, moved to between the least one and 1."""
    return max(0.0, least + (1.0 - least) * factor)


_FACTORS: dict[str, Callable[[RateShape, int], float]] = {
    "constant": _constant,
    "constant_with_warmup": _warmed_up(_constant),
    "linear": _warmed_up(_line),
    "cosine": _warmed_up(_cosine),
    "cosine_with_min_lr": _warmed_up(_cosine),
    "cosine_with_restarts": _warmed_up(_restarted_cosine),
    "polynomial": _warmed_up(_power),
    "inverse_sqrt": _warmed_up(_inverse_root),
    "cosine_warmup_with_min_lr": _cosine_after_raised_warmup,
    "warmup_stable_decay": _stable_between,
}
_OF_COSINE = frozenset({"num_cycles", "min_lr", "min_lr_rate"})
_OPTIONS: dict[str, frozenset[str]] = {
    "cosine": frozenset({"num_cycles"}),
    "cosine_with_min_lr": _OF_COSINE,
    "cosine_with_restarts": frozenset({"num_cycles"}),
    "polynomial": frozenset({"lr_end", "power"}),
    "cosine_warmup_with_min_lr": _OF_COSINE | {"warmup_lr_rate"},
    "warmup_stable_decay": frozenset(
        {"num_decay_steps", "num_stable_steps", "warmup_type", "decay_type", "min_lr_ratio", "num_cycles"}
    ),
}
"""Options that are read here. `inverse_sqrt` has one that 4.51.3 passes over and 5.23.0 reads: a schedule with it is not known here."""
