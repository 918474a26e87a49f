"""How `rlstep run` attaches to TRL's PPOTrainer."""

from __future__ import annotations

from typing import Any

from rlstep_hooks.systems.trl.observe.injection import attach


def audit_ppo(module: Any) -> None:
    """`PPOTrainer`, where this module defines it (up to 0.24)."""
    if getattr(module.PPOTrainer, "__module__", "") == module.__name__:
        attach(module.PPOTrainer)
