"""Whether the weights that compute a policy's log-probs and go to the engines are those that its last update left.

DeepSpeed steps on weights of its own in float32 and writes them to the model after each update. Whatever else writes to the model acts
until the next update, and the weights of the optimizer do not show it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.bits import bits
from rlstep_hooks.observe.weight_probe import WeightProbe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor


class ModelWeights:
    """Follows a probe of the weights of one process's model. With ZeRO-3 no process holds whole tensors, and nothing is followed.

    Args:
        parameters: The parameters of the model.
    """

    def __init__(self, parameters: Iterable[Any]) -> None:
        self._trained = [weights for weights in parameters if weights.requires_grad]
        self._probe = WeightProbe(self._trained)
        self._left: Tensor | None = self._weights()
        self._moved: list[Tensor] = []

    def _weights(self) -> Tensor | None:
        return self._probe.weights() if self._probe.size else None

    @property
    def frozen(self) -> int:
        """Tensors that were trained at first and require no gradient any more."""
        return sum(not weights.requires_grad for weights in self._trained)

    def left(self) -> None:
        """An update is over."""
        self._left = self._weights()

    def look(self) -> None:
        """The weights are about to be used."""
        now = self._weights()
        if now is None or self._left is None or now.device != self._left.device:
            return
        self._moved.append((bits(now) != bits(self._left)).count_nonzero())
        self._left = now

    def take(self) -> int | None:
        """Probed weights that something else than an update wrote to since the last call; None if nothing was looked at."""
        moved, self._moved = self._moved, []
        return int(torch.stack(moved).sum()) if moved else None
