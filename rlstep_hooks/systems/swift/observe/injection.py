"""How `rlstep run` attaches to ms-swift: each GRPOTrainer gets a callback of its own when it is built."""

from __future__ import annotations

from typing import Any

from rlstep_hooks.systems.trl.observe.injection import attach


def audit_grpo(module: Any) -> None:
    """ms-swift's own `GRPOTrainer` (swift/rlhf_trainers/grpo_trainer.py, 4.4 to 4.6). That module deletes the `__init__` of its base
    class in TRL, and with it any wrapper there."""
    attach(module.GRPOTrainer)
