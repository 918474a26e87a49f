"""PPO's clipped surrogate of tokens as a part of a `Formula`: values, edges, and sizes of what its gradient is added up from.

Source: arxiv.org/abs/1707.06347, 1912.09729 (dual clip). B samples, T tokens. Tensors of a batch: log_probs, old, advantages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlstep_hooks.observe.losses import clipped_surrogate, near_clip

if TYPE_CHECKING:
    from torch import Tensor

    from rlstep_hooks.observe.losses import LossBatch


@dataclass(frozen=True)
class Clip:
    """Where the ratio is clipped."""

    low: float
    high: float
    dual: float | None

    def losses(self, batch: LossBatch) -> Tensor:
        """(B, T), the loss of each token."""
        return clipped_surrogate(_ratio(batch), batch.tensors["advantages"], self.low, self.high, self.dual)

    def edges(self, batch: LossBatch) -> Tensor:
        """(B, T), where a rounding decides on which side of a limit the ratio is."""
        bounds = [1 - self.low, 1 + self.high, *([self.dual] if self.dual else [])]
        return near_clip(_ratio(batch), *bounds, rounding=batch.epsilons.get("policy", 0.0))


def sizes(batch: LossBatch) -> Tensor:
    """(B, T), the sizes of the numbers that loss and derivative of each token are computed from."""
    given = batch.tensors
    return given["advantages"].abs() * _ratio(batch) * (1 + given["log_probs"].abs() + given["old"].abs())


def _ratio(batch: LossBatch) -> Tensor:
    return (batch.tensors["log_probs"] - batch.tensors["old"]).exp()
