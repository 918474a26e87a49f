"""Log ratios of micro-batches to the log-probs of the engine, as the loss takes them. Nothing waits for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.numbers import Columns
from rlstep_hooks.record.events import MicroBatchValues

if TYPE_CHECKING:
    from torch import Tensor

COLUMNS = ("tokens", "max_abs_log_ratio", "sum_abs_log_ratio", "max_abs_advantage")
"""Trained tokens, the largest and the sum of their |log ratio|, and the largest |advantage|."""


class RatioMeter:
    """Measures micro-batches from what `compute_loss` was given and what its model returned (TRL 1.16.0:1497-1530)."""

    def __init__(self) -> None:
        self._done: list[tuple[Columns, Tensor]] = []
        self._of_rollout: list[Tensor] = []

    def measure(self, index: int, inputs: dict[str, Any], log_probs: Tensor) -> None:
        """Measure one micro-batch.

        Args:
            index: The micro-batch.
            inputs: "token_index" (1, M), the position whose prediction is each trained token, -1 where there is none; and
                "old_log_probs" (1, M), the engine's, and "advantages" (1, M).
            log_probs: (1, N), of the packed positions.
        """
        selected = inputs["token_index"] >= 0
        new = log_probs.flatten()[inputs["token_index"][selected]].float()
        size = (new - inputs["old_log_probs"][selected].float()).abs()
        columns = [selected.sum().float(), size.max(), size.sum(), inputs["advantages"][selected].float().abs().max()]
        self._done.append((Columns(MicroBatchValues, (index,), COLUMNS, padded=True), torch.stack(columns)))
        self._of_rollout.append(self._done[-1][1])

    def take_gap(self) -> list[Tensor]:
        """The vectors of the micro-batches of this rollout: the trainer's weights did not change between them."""
        found, self._of_rollout = self._of_rollout, []
        return found

    def work_up(self) -> list[tuple[Columns, Tensor]]:
        """The numbers of all micro-batches since the last call, as vectors of float32."""
        done, self._done = self._done, []
        return done
