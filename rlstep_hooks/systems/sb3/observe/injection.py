"""How `rlstep run` attaches to Stable-Baselines3: each call of `learn` gets its own callback, unless the user already passed one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.hooks import Call, Hooks, LateRecorder
from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.record import suite
from rlstep_hooks.record.describe import describe
from rlstep_hooks.record.logger import not_evaluated
from rlstep_hooks.record.refusals import refused

if TYPE_CHECKING:
    from rlstep_hooks.systems.sb3.observe.callback import StepAuditSB3Callback

_patches = Patches()


def audit_sb3(module: Any) -> None:
    """The loop of PPO and A2C (2.7 to 2.9, the module that defines it)."""
    # Only noted, for the table of a test suite: a model that is built and never learns.
    hooks = Hooks(LateRecorder(lambda: None), _patches)
    hooks.wrap(module.OnPolicyAlgorithm, "__init__", after=_built, topics=("recording",))
    # A patch and no hook: the audit learns with which error `learn` ends.
    _patches.wrap(module.OnPolicyAlgorithm, "learn", _around_learn)


def audit_maskable(module: Any) -> None:
    """The loop of MaskablePPO (sb3-contrib 2.7 to 2.9, the module that defines it)."""
    # A patch and no hook, as above: the audit learns with which error `learn` ends.
    _patches.wrap(module.MaskablePPO, "learn", _around_learn)


def detach() -> list[str]:
    """Leave the class as it was; names that somebody else has wrapped since are returned."""
    return _patches.restore()


def _built(call: Call) -> None:
    suite.built(call.owner)


def _around_learn(wrapped: Any, model: Any, args: Any, kwargs: Any) -> Any:
    # learn(total_timesteps, callback=None, ...), 2.7.0 and 2.9.2.
    given = kwargs["callback"] if "callback" in kwargs else args[1] if len(args) > 1 else None
    audit, callbacks = _with_audit(given)
    if audit is None:
        return wrapped(*args, **kwargs)
    if len(args) > 1:
        args = args[0], callbacks, *args[2:]
    else:
        kwargs = {**kwargs, "callback": callbacks}
    with audit:
        return wrapped(*args, **kwargs)


def _with_audit(given: Any) -> tuple[StepAuditSB3Callback | None, list[Any]]:
    """A new audit, and the given callbacks with it; None if no audit is asked for or one is already there."""
    if not os.environ.get("RLSTEP_DIR"):
        return None, []
    try:
        from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback

        from rlstep_hooks.systems.sb3.observe.callback import StepAuditSB3Callback

        several = given if isinstance(given, list) else [] if given is None else [given]
        callbacks = [one if isinstance(one, BaseCallback) else ConvertCallback(one) for one in several]
        inner = [held for one in callbacks for held in getattr(one, "callbacks", [one])]
        if any(isinstance(one, StepAuditSB3Callback) for one in inner):
            return None, []
        audit = StepAuditSB3Callback()
    except Exception as error:  # noqa: BLE001 - an audit that cannot begin must not keep training from it
        reason = f"the audit could not begin: {describe(error)}"
        not_evaluated(reason)
        refused(reason)
        return None, []
    return audit, [*callbacks, audit]
