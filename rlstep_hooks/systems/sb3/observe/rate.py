"""The learning-rate schedule of a model, as rule RLS605 reads it."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common import utils


def rate_facts(model: Any) -> dict[str, Any]:
    """The schedule, if it is one of Stable-Baselines3's own. A user's function is not called, since an extra call could disturb it.

    A rollout is a tick. Progress is counted before it is trained (common/on_policy_algorithm.py `learn`, 2.7.0 and 2.9.2), over the
    timesteps of all calls of `learn` that continue each other.
    """
    schedule: Any = getattr(model.lr_schedule, "value_schedule", None)
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
