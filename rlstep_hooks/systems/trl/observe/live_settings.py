"""The settings that a cycle follows, read from the live trainer again and again: somebody may rewrite them while it trains."""

from __future__ import annotations

import operator
from typing import Any

from rlstep_hooks.systems.trl.launch import CYCLE_SETTINGS


class LiveSettings:
    """Tells which settings changed since training began, or since they were looked at last."""

    def __init__(self, trainer: Any) -> None:
        paths = {name: f"args.{name}" for name in CYCLE_SETTINGS if hasattr(trainer.args, name)}
        # The trainer keeps the group size for itself, and groups rewards by it (GRPOTrainer and RLOOTrainer, all releases).
        paths["trainer.num_generations"] = "num_generations"
        self._trainer = trainer
        self._names = tuple(paths)
        self._read = operator.attrgetter(*paths.values())
        self._before = self._read(trainer)

    def changes(self) -> list[tuple[str, Any, Any]]:
        """Name, value before and value now of each that changed since the last call."""
        before, now = self._before, self._read(self._trainer)
        if now == before:
            return []
        self._before = now
        return [change for change in zip(self._names, before, now, strict=True) if change[1] != change[2]]
