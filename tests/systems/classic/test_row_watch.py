"""Rows are followed to the losses in the rollouts that are compared, and in no others."""

from __future__ import annotations

from typing import Any

import torch

from rlstep_hooks.systems.own_loop.rows import RowWatch


class _Observer:
    """What a watch asks of the observer of a loop.

    Attributes:
        latest: The number of the latest rollout.
        compares: Whether it is compared.
        told: What was said of micro-batches.
    """

    def __init__(self) -> None:
        self.latest = 0
        self.compares = True
        self.told: list[float] = []

    def microbatch(self, **given: Any) -> None:
        """A micro-batch."""

    def add_columns(self, columns: dict[str, torch.Tensor]) -> None:
        """Numbers of it."""
        self.told += [float(of) for of in columns.values()]


def test_rows_of_an_earlier_rollout_say_nothing_of_a_later_one() -> None:
    """A system may hand over rows in the rollouts alone that are compared."""
    observer: Any = _Observer()
    watch = RowWatch(observer, observer, {"advantages_intact": ("advantages",)})
    places, nothing = torch.tensor([1, 0]), torch.zeros(2)
    tensors = {"log_probs": nothing, "old": nothing, "advantages": nothing, "targets": None}

    def trained(advantages: list[float]) -> None:
        watch.trained({"advantages": torch.tensor(advantages)}, places, tensors, nothing)

    watch.keep({"advantages": torch.tensor([1.0, 2.0])})
    trained([2.0, 1.0])
    trained([1.0, 2.0])
    assert observer.told == [0.0, 2.0]
    observer.latest, observer.compares = 1, False
    trained([5.0, 6.0])
    assert observer.told == [0.0, 2.0]
