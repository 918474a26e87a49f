"""Whether the loader serves the same prompts again and again. Rows are told apart by their prompts, counted as often as they are in
the set."""

from __future__ import annotations

import math
from typing import Any

REMEMBERED = 4096
"""Different prompts, beyond which nobody can say that they are always the same few."""


class RowWatch:
    """Counts the rollouts that each prompt was in.

    Args:
        trainer: A GRPOTrainer or RLOOTrainer of 0.18 or later, whose rollouts are those of whole chunks of the loader.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._served: dict[str, int] = {}
        self._in_set: dict[str, int] = {}
        self._counts = hasattr(trainer.args, "steps_per_generation") and hasattr(trainer.train_dataset, "__len__")

    def repeated(self, rows: Any) -> int | None:
        """Prompts of a rollout that came more often than the passes of the loader, and one more, give them; None where that is not
        known. The one more allows for a pass whose end the trainer counts late."""
        if not self._counts or not isinstance(rows, list) or not all("prompt" in row for row in rows):
            return None
        allowed = math.floor(self._trainer.state.epoch or 0) + 2
        often = []
        for prompt in {str(row["prompt"]) for row in rows}:
            served = self._served[prompt] = self._served.get(prompt, 0) + 1
            if served > allowed:
                often.append((prompt, served))
        if len(self._served) > REMEMBERED:
            self._counts = False
            return None
        known = [(served, self._count_in_set(prompt)) for prompt, served in often]
        if any(in_set == 0 for _, in_set in known):  # the set says it in another way
            self._counts = False
            return None
        return sum(served > allowed * in_set for served, in_set in known)

    def _count_in_set(self, prompt: str) -> int:
        """How many rows of the set have this prompt; read once, and only for one that came too often."""
        if prompt not in self._in_set:
            self._in_set[prompt] = sum(str(held) == prompt for held in self._trainer.train_dataset["prompt"])
        return self._in_set[prompt]
