"""Hooks on the import of frameworks, for processes that never heard of this package.

wrapt calls each of these when the named module has been imported, and imports what is named here only then.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

import wrapt

_ON_IMPORT = {
    # trl 0.16 to 1.16: the modules that define the trainers.
    "trl.trainer.grpo_trainer": "rlstep_hooks.systems.injection.hooks:audit_grpo",
    "trl.trainer.rloo_trainer": "rlstep_hooks.systems.injection.hooks:audit_rloo",
    "trl.trainer.ppo_trainer": "rlstep_hooks.systems.injection.hooks:audit_ppo",
    # Stable-Baselines3 2.7 to 2.9: the module with the loop of PPO and A2C.
    "stable_baselines3.common.on_policy_algorithm": "rlstep_hooks.systems.injection.hooks:audit_sb3",
    # verl 0.6 and later; from 0.9 on the entry point does the same, and the second call does nothing.
    "verl": "rlstep_hooks.systems.injection.hooks:audit_verl",
    # OpenRLHF 0.7 and later: imported by the driver before it starts Ray.
    "openrlhf": "rlstep_hooks.systems.injection.hooks:audit_openrlhf",
}


def register() -> None:
    """Register all hooks of this process."""
    for module, hook in _ON_IMPORT.items():
        wrapt.register_post_import_hook(hook, module)


def audit_grpo(module: Any) -> None:
    """`GRPOTrainer` gets an audit of its own."""
    _give_callback(module.GRPOTrainer)


def audit_rloo(module: Any) -> None:
    """`RLOOTrainer` gets an audit of its own, where it is built on the same loop (0.22 and later)."""
    if hasattr(module.RLOOTrainer, "_generate_and_score_completions"):
        _give_callback(module.RLOOTrainer)


def audit_ppo(module: Any) -> None:
    """`PPOTrainer` gets an audit of its own, where this module defines it (up to 0.24)."""
    if getattr(module.PPOTrainer, "__module__", "") == module.__name__:
        _give_callback(module.PPOTrainer)


def audit_sb3(module: Any) -> None:
    """Each call of `learn` of an on-policy algorithm gets an audit of its own, unless its user gave it one."""
    algorithm = module.OnPolicyAlgorithm
    learn = algorithm.learn

    @wraps(learn)
    def learn_with_audit(self: Any, total_timesteps: int, callback: Any = None, *args: Any, **kwargs: Any) -> Any:
        audit, callbacks = _sb3_callbacks(callback)
        if audit is None:
            return learn(self, total_timesteps, callback, *args, **kwargs)
        with audit:
            return learn(self, total_timesteps, callbacks, *args, **kwargs)

    algorithm.learn = learn_with_audit


def _sb3_callbacks(given: Any) -> tuple[Any, list[Any]]:
    """An audit, and it beside the callbacks that were given; None where there is to be none."""
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
        print(f"rlstep: not evaluated: the audit could not begin: {type(error).__name__}: {error}", flush=True)
        return None, []
    return audit, [*callbacks, audit]


def audit_verl(module: Any) -> None:
    """Attach verl's registered hook."""
    from rlstep_hooks.systems.verl.observe.plugin import activate

    activate()


def audit_openrlhf(module: Any) -> None:
    """Have Ray attach the audit in each worker."""
    from rlstep_hooks.systems.openrlhf.observe.ray_hooks import ask_ray

    ask_ray()


def _give_callback(trainer_class: Any) -> None:
    """Have each trainer of a class add a StepAuditCallback when it is built, unless its user gave it one."""
    build = trainer_class.__init__

    @wraps(build)
    def build_with_audit(self: Any, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        _add_callback(self)

    trainer_class.__init__ = build_with_audit


def _add_callback(trainer: Any) -> None:
    if not os.environ.get("RLSTEP_DIR"):
        return
    try:
        from rlstep_hooks.systems.trl.observe.callback import StepAuditCallback

        if not any(isinstance(callback, StepAuditCallback) for callback in trainer.callback_handler.callbacks):
            trainer.add_callback(StepAuditCallback())
    except Exception as error:  # noqa: BLE001 - an audit that cannot begin must not keep training from it
        print(f"rlstep: not evaluated: the audit could not begin: {type(error).__name__}: {error}", flush=True)
