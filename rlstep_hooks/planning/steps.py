"""A number of "steps", converted to rollouts, updates, micro-batches, samples and data epochs under each meaning of "step"."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.planning.schedule import StepUnit

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule


class StepReading(msgspec.Struct, frozen=True, kw_only=True):
    """A number of steps under one meaning of the word."""

    unit: StepUnit
    """What one step is assumed to be."""
    logged: bool
    """Whether "step" has this meaning in the framework's logs."""
    steps: int
    rollouts: Fraction
    updates: Fraction | None
    """None where the data decide how many a rollout makes."""
    microbatches: Fraction | None
    """Micro-batches of one process; None where the data decide how many a rollout makes."""
    samples: Fraction
    data_epochs: Fraction | None
    loader_epochs: Fraction | None


def units_of(schedule: Schedule) -> tuple[StepUnit, ...]:
    """The meanings of "step" to tell apart: four common ones, and the framework's own if it differs from them."""
    last: StepUnit = "timestep" if schedule.step_unit == "timestep" else "sample"
    units: tuple[StepUnit, ...] = ("rollout", "update", "microbatch", last)
    return units if schedule.step_unit in units else (*units, schedule.step_unit)


def per_rollout(schedule: Schedule, unit: StepUnit) -> Fraction | None:
    """Number of a unit in one rollout; None if the data decide."""
    decided = schedule.updates_bound == "data_dependent" or bool(schedule.updates_from)
    counts: dict[StepUnit, int | Fraction | None] = {
        "rollout": 1,
        "update": None if decided else schedule.updates_per_rollout,
        "microbatch": None if decided else schedule.microbatches_per_rollout,
        "sample": schedule.samples_per_rollout,
        "timestep": schedule.samples_per_rollout,
        "prompt": schedule.prompts_per_rollout,
        "epoch": schedule.reuse_epochs,
    }
    value = counts[unit]
    return None if value is None else Fraction(value)


def read_steps(schedule: Schedule, steps: int, unit: StepUnit) -> StepReading | None:
    """A number of steps if a step is one `unit`; None if the number of them per rollout is unknown or 0.

    Totals are proportional: a shorter last rollout or window of a data epoch is not counted separately.
    """
    each = per_rollout(schedule, unit)
    if not each:
        return None
    rollouts = Fraction(steps) / each
    updates, microbatches = per_rollout(schedule, "update"), per_rollout(schedule, "microbatch")
    prompts = rollouts * schedule.prompts_per_rollout
    return StepReading(
        unit=unit,
        logged=unit == schedule.step_unit,
        steps=steps,
        rollouts=rollouts,
        updates=None if updates is None else rollouts * updates,
        microbatches=None if microbatches is None else rollouts * microbatches,
        samples=rollouts * schedule.samples_per_rollout,
        data_epochs=prompts / schedule.rows if schedule.rows else None,
        loader_epochs=rollouts / schedule.rollouts_per_epoch if schedule.rollouts_per_epoch else None,
    )


def all_readings(schedule: Schedule, steps: int) -> list[StepReading]:
    """A number of steps under every meaning of the word."""
    readings = (read_steps(schedule, steps, unit) for unit in units_of(schedule))
    return [reading for reading in readings if reading is not None]


def logged_steps(schedule: Schedule) -> int | None:
    """Steps that the whole run logs; None if its length is unknown."""
    each = per_rollout(schedule, schedule.step_unit)
    if schedule.step_unit == "update":
        return schedule.updates
    if schedule.rollouts is None or each is None:
        return None
    return int(schedule.rollouts * each)
