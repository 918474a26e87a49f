"""When the audit of a run of `fully_async_policy` begins and ends, in each of its two processes.

Ray sends the classes of both by value and calls their methods as the classes have them; their parents are imported by name. So a
method of a parent tells which object it is, and hooks on this object see what its own methods call. All verified in 0.9.1 by real runs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from rlstep_hooks.observe.hooks import Call, Hooks, LateRecorder
from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.systems.verl.observe.controller_hooks import begin_with, controller_of, end
from rlstep_hooks.systems.verl.observe.fully_async.controller import FullyAsyncController
from rlstep_hooks.systems.verl.observe.fully_async.rollouter import Rollouter
from rlstep_hooks.systems.verl.plan import is_fully_async

_STOPS = "TrainingStopException"
"""What ends the loop of training when nothing more comes from the queue (fully_async_trainer.py:42)."""

_patches = Patches()
"""Patches on the one object that this process audits."""

_no_record = LateRecorder(lambda: None)
"""Tells the log what these hooks cannot see: there is no record before a run begins."""

_rollouter: Rollouter | None = None


def place_hooks(patches: Patches, separate_trainer: Any) -> None:
    """Put the hook into `SeparateRayPPOTrainer`, the parent of both classes and of one_step_off_policy's."""
    # separation/ray_trainer.py:155: called once by `init_workers` of each, when the object has its configuration and its data.
    Hooks(_no_record, patches).wrap(separate_trainer, "_create_worker_classes", after=_prepared, topics=("order",))


def _prepared(call: Call) -> None:
    global _rollouter
    if is_fully_async(call.owner.config):
        if hasattr(call.owner, "_process_single_sample_streaming"):
            _rollouter = _rollouter or Rollouter(call.owner)
        else:
            _place_on_trainer(call.owner)


def _place_on_trainer(trainer: Any) -> None:
    # fully_async_trainer.py:357: its syncs are made by what this builds; the first follows the checkpoint, before anything is trained.
    hooks = Hooks(_no_record, _patches)
    hooks.wrap(trainer, "_setup_checkpoint_manager", after=partial(_has_manager, trainer), topics=("order",))
    # The other two are no hooks, which see no exception of what they look at, and would contain the one by which the audit ends
    # training.
    # fully_async_trainer.py:491: one fetch and its updates; what it raises ends training.
    _patches.wrap(trainer, "fit_step", partial(_around_fetch, trainer))
    # fully_async_trainer.py:489: the last thing that `fit` does, with `force`.
    _patches.wrap(trainer, "_fit_save_checkpoint", partial(_around_saving, trainer))


def _has_manager(trainer: Any, call: Call) -> None:
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

    # No hook either: where it was asked for, an error of the run is raised here.
    _patches.wrap(trainer.checkpoint_manager, "update_weights", around_sync)


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
