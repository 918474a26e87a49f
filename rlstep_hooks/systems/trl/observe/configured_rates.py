"""The learning rates that the arguments of a trainer ask for, computed beside its own scheduler, which is what is compared.

`Trainer.create_scheduler` hands the arguments to `get_scheduler` (transformers 4.51.3 trainer.py:1744, 5.23.0 trainer.py:1367), and
the loop ticks once for each update that it makes (5.23.0 trainer.py:1942). What the documented schedules give is computed here by
formulas of our own, so that a fault in those of transformers does not hide itself. A kind that is not among them is asked of
transformers, on an optimizer of one number that nobody trains.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import torch

from rlstep_hooks.planning.rate_schedules import RateShape, is_documented
from rlstep_hooks.record.describe import describe
from rlstep_hooks.systems.trl.observe.documented_optimizer import is_of_transformers

_NOT_FROM_ARGUMENTS = (
    "the trainer did not make its scheduler from its arguments, so they do not say what the learning rate should be"
)
_BY_THE_CLASS = (
    "the trainer's class makes its scheduler in a way of its own, so its arguments do not say what the rate should be"
)
_BY_A_METRIC = "the learning rate follows a metric, so the number of updates does not say what it should be"
_OTHER_GROUPS = "the optimizer has other groups of parameters than its scheduler"


class ConfiguredRates(msgspec.Struct, frozen=True):
    """What the arguments ask for: a factor for each update, and the rate of each group that it multiplies."""

    factor: Callable[[int], float]
    """Gives the factor at so many ticks."""
    bases: tuple[float, ...]
    """The rates of the optimizer's groups that the factor multiplies, as they are when training begins."""

    def at(self, tick: int) -> tuple[float, ...]:
        """The rate of each group after so many ticks."""
        factor = self.factor(tick)
        return tuple(base * factor for base in self.bases)


def configured_rates(trainer: Any, optimizer: Any) -> ConfiguredRates | str:
    """What the arguments of a trainer ask for when it begins to train; or why they do not say it.

    Args:
        trainer: A trainer of transformers.
        optimizer: The torch optimizer inside its own.
    """
    try:
        return _configured(trainer, optimizer)
    except Exception as error:  # noqa: BLE001 - a schedule that cannot be built here keeps nothing from being trained
        return f"the configured schedule could not be built a second time: {describe(error)}"


def _configured(trainer: Any, optimizer: Any) -> ConfiguredRates | str:
    live = getattr(trainer.lr_scheduler, "scheduler", trainer.lr_scheduler)  # accelerate wraps it for DeepSpeed
    if not getattr(trainer, "_created_lr_scheduler", False):
        return _NOT_FROM_ARGUMENTS
    if not is_of_transformers(type(trainer), "create_scheduler"):
        return _BY_THE_CLASS
    function = _documented_factor(trainer, optimizer)
    if function is None:
        return _BY_A_METRIC
    if not _is_made_by_transformers(live):
        return _NOT_FROM_ARGUMENTS
    bases = tuple(float(base) for base in live.base_lrs)
    return ConfiguredRates(function, bases) if len(bases) == len(optimizer.param_groups) else _OTHER_GROUPS


def _is_made_by_transformers(scheduler: Any) -> bool:
    functions = getattr(scheduler, "lr_lambdas", ())
    own = "transformers.optimization"
    return bool(functions) and all(getattr(getattr(of, "func", of), "__module__", "") == own for of in functions)


def _documented_factor(trainer: Any, optimizer: Any) -> Callable[[int], float] | None:
    """The function of the ticks by which the configured schedule multiplies each rate; None for one that is no function of them."""
    args = trainer.args
    ticks = int(trainer.state.max_steps)  # what `create_scheduler` is told; rule RLS601 compares it with the plan
    # Schedules that end at a rate divide it by the optimizer's own (5.23.0 optimization.py:336, 376).
    rate = getattr(optimizer, "defaults", {}).get("lr")
    rate = float(rate if isinstance(rate, float | int) else args.learning_rate)
    kind = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    options = dict(getattr(args, "lr_scheduler_kwargs", None) or {})
    shape = RateShape(kind, ticks, configured_warmup(args, ticks), rate, options)
    return shape.factor if is_documented(shape) else _factor_of_transformers(shape)


def configured_warmup(args: Any, ticks: int) -> int:
    """The ticks of warm-up: `warmup_steps` from 1 on is their number, below 1 (5.x) or as `warmup_ratio` (4.x) a share, rounded up.

    Args:
        args: The arguments of a trainer of transformers (4.51.3 training_args.py:2493, 5.23.0 training_args.py:2154).
        ticks: The ticks of the run.
    """
    steps = args.warmup_steps
    return int(steps) if steps >= 1 else math.ceil(ticks * (steps or getattr(args, "warmup_ratio", None) or 0.0))


def _factor_of_transformers(shape: RateShape) -> Callable[[int], float] | None:
    """The function that transformers itself has for a kind or an option whose formula is not known here."""
    from transformers.optimization import get_scheduler

    scheduler = get_scheduler(
        shape.kind,
        optimizer=torch.optim.SGD([torch.zeros(1)], lr=shape.base),
        num_warmup_steps=shape.warmup,
        num_training_steps=int(shape.horizon),
        scheduler_specific_kwargs=dict(shape.options),
    )
    functions: list[Callable[[int], float]] = getattr(scheduler, "lr_lambdas", [])
    return functions[0] if functions else None
