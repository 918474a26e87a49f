"""When the audit of a controller begins and ends: hooks in the classes of verl's trainers, and in what they log through.

A `VerlController` is made when a trainer has loaded its checkpoint; it follows that one object until its `fit` ends.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from rlstep_hooks.judge.report import StepAuditError
from rlstep_hooks.observe.hooks import Call, Hooks, LateRecorder
from rlstep_hooks.observe.logged import with_metrics
from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.record.describe import describe
from rlstep_hooks.record.logger import not_evaluated
from rlstep_hooks.session.held_signals import signals_held
from rlstep_hooks.systems.verl.observe.controller import VerlController
from rlstep_hooks.systems.verl.plan import is_one_step_off

if TYPE_CHECKING:
    from collections.abc import Callable


def place_hooks(patches: Patches, trainer_class: Any) -> None:
    """Put the controller's hooks into a class of trainers."""
    for place in _PLACES.values():
        place(patches, trainer_class)
    # Trainers of one's own (verl.experimental, the recipes) have another `fit`, and some another `_load_checkpoint`. Before either is
    # called they are built by one of these of verl 0.9.1, whichever they have kept (read in 18 trainers of verl-recipe at 48ea0a7).
    for method in ("__init__", "init_workers", "_create_dataloader"):
        if hasattr(trainer_class, method):
            Hooks(_no_record, patches).wrap(trainer_class, method, after=_built, topics=("order",))
    _hooked.append(trainer_class)


def _place_on_loading(patches: Patches, owner: Any) -> None:
    # Verified in 0.9.1, both trainers: called once, after data and workers are there and before the first weight sync
    # (V1 from `init`, V0 from `fit`); afterwards `global_steps` says where the run goes on.
    Hooks(_no_record, patches).wrap(owner, "_load_checkpoint", after=_loaded, topics=("order",))


def _place_on_fit(patches: Patches, owner: Any) -> None:
    # Verified in 0.9.1, both trainers: `fit` is the whole of training, and a run that fails leaves it with the exception. No hook
    # stands here: one does not see this exception, and would contain the one by which the audit ends training.
    patches.wrap(owner, "fit", _around_fit)


_PLACES = {"fit": _place_on_fit, "_load_checkpoint": _place_on_loading}
"""What puts a hook on each of the two methods, in a class or on one object."""

_no_record = LateRecorder(lambda: None)
"""Tells the log what these hooks cannot see: there is no record before a run begins."""


def place_tracking_hook(patches: Patches, tracking: Any) -> None:
    """Put the hook of what is logged into verl's `Tracking`."""
    # Verified in 0.9.1, both trainers: all of a trainer's backends get their metrics here, after each rollout and its sync of
    # weights, and after a validation (utils/tracking.py:191, trainer_base.py:514, ray_trainer.py:1802). On the class, because V0
    # keeps its object to itself.
    Hooks(_no_record, patches).wrap(tracking, "log", before=_logged, topics=("recording",))


_controllers: dict[int, VerlController] = {}
"""The controllers of this process by the id of their trainer, for as long as it trains; a process has one trainer."""


_hooked: list[Any] = []
"""Classes whose `fit` and `_load_checkpoint` have a hook."""

_fitting: set[int] = set()
"""Trainers whose `fit` is running, by id."""

_own: dict[int, Patches] = {}
"""Hooks of trainers whose class has one of these two of its own; by the id of the trainer, which they keep alive."""


def _has_own(trainer: Any, method: str) -> bool:
    """Whether a trainer's method is not that of verl's trainers."""
    return next(kind for kind in type(trainer).__mro__ if method in vars(kind)) not in _hooked


def _built(call: Call) -> None:
    trainer = call.owner
    # On the object: the class may be of a script that Ray sends by value, wrappers and all.
    own = [place for name, place in _PLACES.items() if _has_own(trainer, name)]
    if own and id(trainer) not in _own:
        patches = _own[id(trainer)] = Patches()
        for place in own:
            place(patches, trainer)


def _loaded(call: Call) -> None:
    begin_with(call.owner, _controller)


def _controller(trainer: Any) -> VerlController:
    own_fit = _has_own(trainer, "fit") and not is_one_step_off(trainer.config)
    return VerlController(trainer, own_fit=own_fit)


def begin_with(trainer: Any, controller: Callable[[Any], VerlController]) -> None:
    """Have a trainer followed, once.

    Args:
        trainer: verl's, or one that stands on it.
        controller: Makes what follows it.
    """
    try:
        if id(trainer) not in _controllers:
            _controllers[id(trainer)] = controller(trainer)
    except Exception as error:  # noqa: BLE001 - an audit that cannot begin must not keep training from it
        not_evaluated(f"the audit could not begin: {describe(error)}")


def controller_of(trainer: Any) -> VerlController | None:
    """What follows a trainer; None if nothing does."""
    return _controllers.get(id(trainer))


def _around_fit(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    if id(trainer) in _fitting:  # a `fit` of one's own that calls verl's
        return wrapped(*args, **kwargs)
    _fitting.add(id(trainer))
    try:
        result = wrapped(*args, **kwargs)
    except BaseException as error:
        end(trainer, error)
        raise
    if inspect.iscoroutine(result):
        return _awaited(result, trainer)
    end(trainer)
    return result


async def _awaited(fitting: Any, trainer: Any) -> Any:
    """`fit` of a trainer that waits for its rollouts (experimental/one_step_off_policy 0.9.1)."""
    try:
        result = await fitting
    except BaseException as error:
        end(trainer, error)
        raise
    end(trainer)
    return result


def _logged(call: Call) -> None:
    added = {name: value for controller in _controllers.values() for name, value in controller.scalars().items()}
    call.args, call.kwargs = with_metrics(call.args, call.kwargs, added, name="data", position=0)


def end(trainer: Any, error: BaseException | None = None) -> None:
    """The record ends.

    Raises:
        StepAuditError: The audit ended training, and `fit` returned as if all were well.
    """
    _fitting.discard(id(trainer))
    own = _own.pop(id(trainer), None)
    if own is not None:
        own.restore()
    controller = _controllers.pop(id(trainer), None)
    if controller is None:
        not_evaluated(f"{type(trainer).__qualname__} ended, and the audit never began: it loads no checkpoint")
        return
    # Ray tells a worker more than once that it should end; the second time must not keep the first from being recorded.
    with signals_held():
        controller.end(error)
    if error is None and controller.stopped_for is not None:
        # `fit` has saved what it has; what follows it is the end of the driver, with this as its exit status.
        raise StepAuditError(controller.stopped_for)
