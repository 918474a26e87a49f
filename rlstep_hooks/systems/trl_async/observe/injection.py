"""How `rlstep run` attaches to TRL's AsyncGRPOTrainer."""

from __future__ import annotations

from typing import Any

from rlstep_hooks.systems.trl.observe.injection import attach


def audit_async(module: Any) -> None:
    """`AsyncGRPOTrainer` (trl 1.16, the module that defines it)."""
    attach(module.AsyncGRPOTrainer)
