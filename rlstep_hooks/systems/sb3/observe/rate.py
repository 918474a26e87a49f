"""The learning-rate schedule of a model, as rule RLS605 reads it."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common import utils

from rlstep_hooks.systems.sb3.observe.pure import is_pure, schedule_of


def rate_facts(model: Any) -> dict[str, Any]:
    """The schedule, if it is one of Stable-Baselines3's own.

    A rollout is a tick. Progress is counted before it is trained (common/on_policy_algorithm.py `learn`, 2.7.0 and 2.9.2), over the
    timesteps of all calls of `learn` that continue each other.
    """
    schedule: Any = schedule_of(model.lr_schedule)
    constant: Any = getattr(utils, "ConstantSchedule", ())
    linear: Any = getattr(utils, "LinearSchedule", ())
    if isinstance(schedule, constant):
        return {"lr_schedule": {"kind": "constant", "base": float(schedule.val), "horizon": 0}}
    if not isinstance(schedule, linear) or not schedule.start:
        return {}
    samples = model.n_steps * model.n_envs
    return {
        "lr_schedule": {
            "kind": "line",
            "base": float(schedule.start),
            "horizon": float(schedule.end_fraction) * model._total_timesteps / samples,
            "least": float(schedule.end) / float(schedule.start),
            "first": 1 + model.num_timesteps / samples,
        }
    }


def own_function(model: Any) -> Any:
    """The schedule where it is a function of the user's that may be called once more; else None."""
    schedule = schedule_of(model.lr_schedule)
    return schedule if is_pure(schedule) else None


def due_rate(function: Any, model: Any) -> float:
    """What the schedule gives for the rollout that is about to be trained.

    Called while the first mini-batch is taken, right after `train` has called it for the same progress: what it reads from outside may
    have other values in another rollout.
    """
    return float(function(1.0 - float(model.num_timesteps) / float(model._total_timesteps)))
