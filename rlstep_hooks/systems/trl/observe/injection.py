"""How `rlstep run` attaches to TRL: each trainer gets a callback of its own when it is built, unless its user gave it one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.record import suite
from rlstep_hooks.record.describe import describe
from rlstep_hooks.record.logger import not_evaluated
from rlstep_hooks.record.refusals import refused
from rlstep_hooks.systems.trl.observe.others import is_other, why_not

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.systems.trl.observe.callback import StepAuditCallback

_patches = Patches()


def audit_grpo(module: Any) -> None:
    """`GRPOTrainer` (trl 0.16 to 1.16, the module that defines it)."""
    attach(module.GRPOTrainer)


def audit_rloo(module: Any) -> None:
    """`RLOOTrainer`, where it is built on the same loop (0.22 and later)."""
    if hasattr(module.RLOOTrainer, "_generate_and_score_completions"):
        attach(module.RLOOTrainer)


def name_others(module: Any) -> None:
    """`Trainer` of transformers, from which all of TRL's trainers descend: those that are not audited are named when they are built."""
    # A patch and no hook: where it fails there is no record that lacks a topic, and what it says is that a trainer was not named.
    _patches.wrap(module.Trainer, "__init__", _around_init_of_any)


def attach(trainer_class: Any) -> None:
    """Have each trainer of a class add a callback when it is built."""
    # A patch and no hook: where it fails there is no record that lacks a topic, but no audit, and that is what it says.
    _patches.wrap(trainer_class, "__init__", _around_init)


def detach() -> list[str]:
    """Leave the classes as they were; names that somebody else has wrapped since are returned."""
    return _patches.restore()


def _around_init(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> None:
    wrapped(*args, **kwargs)
    if os.environ.get("RLSTEP_DIR"):
        add_callback(trainer, _callback)


def _around_init_of_any(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> None:
    wrapped(*args, **kwargs)
    try:
        if os.environ.get("RLSTEP_DIR") and not suite.current_test() and is_other(type(trainer)):
            reason = why_not(type(trainer))
            not_evaluated(f"{reason}. Training goes on without an audit.")
            refused(reason)
    except Exception as error:  # noqa: BLE001 - training goes on, whatever goes wrong here
        not_evaluated(f"a trainer could not be named: {describe(error)}")


def _callback() -> StepAuditCallback:
    from rlstep_hooks.systems.trl.observe.callback import StepAuditCallback

    return StepAuditCallback()


def add_callback(trainer: Any, make: Callable[[], StepAuditCallback]) -> None:
    """Give a trainer a callback, and have the two meet, so that the audit also sees what its `train` raises."""
    try:
        from rlstep_hooks.systems.trl.observe.callback import StepAuditCallback

        if not any(isinstance(callback, StepAuditCallback) for callback in trainer.callback_handler.callbacks):
            audit = make()
            trainer.add_callback(audit)
            suite.built(trainer)
            audit.meet(trainer)
    except Exception as error:  # noqa: BLE001 - an audit that cannot begin must not keep training from it
        reason = f"the audit could not begin: {describe(error)}"
        not_evaluated(reason)
        refused(reason)
