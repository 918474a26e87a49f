"""When the audit of a run of `fully_async_policy` begins and ends, in each of its two processes.

Ray sends the classes of both by value and calls their methods as the classes have them; their parents are imported by name. So a
method of a parent tells which object it is, and hooks on this object see what its own methods call. All verified in 0.9.1 by real runs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.record.describe import describe
from rlstep_hooks.record.logger import not_evaluated
from rlstep_hooks.systems.verl.observe.controller_hooks import begin_with, controller_of, end
from rlstep_hooks.systems.verl.observe.fully_async.controller import FullyAsyncController
from rlstep_hooks.systems.verl.observe.fully_async.rollouter import Rollouter
from rlstep_hooks.systems.verl.plan import is_fully_async

_STOPS = "TrainingStopException"
"""What ends the loop of training when nothing more comes from the queue (fully_async_trainer.py:42)."""

_patches = Patches()
"""Patches on the one object that this process audits."""

_rollouter: Rollouter | None = None


def place_hooks(patches: Patches, separate_trainer: Any) -> None:
    """Put the hook into `SeparateRayPPOTrainer`, the parent of both classes and of one_step_off_policy's."""
    # separation/ray_trainer.py:155: called once by `init_workers` of each, when the object has its configuration and its data.
    patches.wrap(separate_trainer, "_create_worker_classes", _after_worker_classes)


def _after_worker_classes(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    global _rollouter
    result = wrapped(*args, **kwargs)
    try:
        if is_fully_async(instance.config):
            if hasattr(instance, "_process_single_sample_streaming"):
                _rollouter = _rollouter or Rollouter(instance)
            else:
                _place_on_trainer(instance)
    except Exception as error:  # noqa: BLE001 - a process that is not as it was read must start all the same
        not_evaluated(f"{type(instance).__qualname__} could not be hooked: {describe(error)}")
    return result


def _place_on_trainer(trainer: Any) -> None:
    # fully_async_trainer.py:357: its syncs are made by what this builds; the first follows the checkpoint, before anything is trained.
    _patches.wrap(trainer, "_setup_checkpoint_manager", partial(_after_manager, trainer))
    # fully_async_trainer.py:491: one fetch and its updates; what it raises ends training.
    _patches.wrap(trainer, "fit_step", partial(_around_fetch, trainer))
    # fully_async_trainer.py:489: the last thing that `fit` does, with `force`.
    _patches.wrap(trainer, "_fit_save_checkpoint", partial(_around_saving, trainer))


async def _after_manager(trainer: Any, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    result = await wrapped(*args, **kwargs)

    first = True

    async def around_sync(wrapped: Any, manager: Any, args: Any, kwargs: Any) -> Any:
        nonlocal first
        if first:
            first = False
            begin_with(trainer, FullyAsyncController)
        controller = controller_of(trainer)
        if not isinstance(controller, FullyAsyncController):  # the audit could not begin
            return await wrapped(*args, **kwargs)
        return await controller.around_sync(wrapped, manager, args, kwargs)

    try:
        _patches.wrap(trainer.checkpoint_manager, "update_weights", around_sync)
    except Exception as error:  # noqa: BLE001 - as above
        not_evaluated(f"syncs of weights will not be seen: {describe(error)}")
    return result


async def _around_fetch(trainer: Any, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    try:
        result = await wrapped(*args, **kwargs)
    except BaseException as error:
        if type(error).__name__ != _STOPS:
            _end(trainer, error)
        raise
    controller = controller_of(trainer)
    if controller is not None and controller.stopped_for is not None:
        # What `fit` itself does at its end; the end of the audit then raises (`controller_hooks.end`), and verl ends all processes.
        trainer._fit_save_checkpoint(force=True)
    return result


def _around_saving(trainer: Any, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    if kwargs.get("force", args[0] if args else False):
        _end(trainer)
    return result


def _end(trainer: Any, error: BaseException | None = None) -> None:
    if controller_of(trainer) is not None:
        end(trainer, error)
    _patches.restore()
