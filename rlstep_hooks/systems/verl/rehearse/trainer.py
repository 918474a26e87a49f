"""The end of training, in the process of verl's trainer: what came of it is said there."""

from __future__ import annotations

from typing import Any

import wrapt

from rlstep_hooks.rehearse.messages import said, say, settings
from rlstep_hooks.rehearse.rewards import sum_up

_evaluations = 0


def watch_v1(module: Any) -> None:
    """`verl.trainer.ppo.v1.trainer_base`."""
    _watch(module.PPOTrainer)


def watch_v0(module: Any) -> None:
    """`verl.trainer.ppo.ray_trainer`."""
    _watch(module.RayPPOTrainer)


def _watch(trainer: Any) -> None:
    wrapt.wrap_function_wrapper(trainer, "fit", _around_fit)
    wrapt.wrap_function_wrapper(trainer, "_validate", _around_validate)


def _around_fit(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    say("training", resumed=bool(settings().checkpoint))
    try:
        found = wrapped(*args, **kwargs)
    finally:
        sum_up()
    sizes = [each.values for each in said(settings()) if each.topic == "sizes"][-1]
    options = trainer.config.trainer
    say(
        "trained",
        updates=sizes["updates"],
        output=str(options.default_local_dir),
        saves=int(options.save_freq) > 0,
        save_every=int(options.save_freq),
        resumes=sizes["resumes"],
        evaluates=int(options.test_freq) > 0 or bool(options.get("val_before_train", True)),
        evaluations=_evaluations,
    )
    return found


def _around_validate(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    global _evaluations
    found = wrapped(*args, **kwargs)
    _evaluations += 1
    return found
