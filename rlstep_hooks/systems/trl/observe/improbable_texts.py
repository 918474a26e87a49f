"""Completions of micro-batches with their probabilities, for what joins the records of several processes (RLS519).

Shapes: N micro-batches, B samples, T completion tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import torch

from rlstep_hooks.observe.improbable import Improbable
from rlstep_hooks.record.events import MicroBatchValues

if TYPE_CHECKING:
    from torch import Tensor

    from rlstep_hooks.observe.numbers import Values

_BITS = 24
"""What a float32 holds exactly of an integer: a checksum travels as three of them."""
_PARTS = 3


class ImprobableTexts(msgspec.Struct, frozen=True):
    """A vector of what `texts_of` gives."""

    indices: tuple[int, ...]
    """The micro-batches."""
    rollouts: tuple[int, ...]
    """The rollout of each."""

    @property
    def of(self) -> Values:
        """The values whose fields these are."""
        return MicroBatchValues

    def values(self, numbers: list[float]) -> dict[int, dict[str, Any]]:
        """Of each micro-batch its improbable completions."""
        each = len(numbers) // (_PARTS + 1)
        nats, *parts = (numbers[each * place : each * (place + 1)] for place in range(_PARTS + 1))
        samples = each // len(self.indices)
        found = {}
        for place, (index, rollout) in enumerate(zip(self.indices, self.rollouts, strict=True)):
            kept = Improbable()
            for at in range(place * samples, (place + 1) * samples):
                kept.add("".join(f"{int(part[at]):06x}" for part in parts), nats[at])
            found[index] = {"improbable": str(kept), "improbable_in": rollout}
        return found


def texts_of(sums: Tensor, log_probs: Tensor, mask: Tensor) -> Tensor:
    """A checksum of each completion in three parts, and its -log p, as one float32 vector.

    Args:
        sums: (N, B) int64, of the tokens that count, whatever the padding is.
        log_probs: (N, B, T).
        mask: (N, B, T), 1 on tokens that count.
    """
    nats = -(log_probs * mask).float().sum(2)
    parts = [(sums >> _BITS * place) & ((1 << _BITS) - 1) for place in reversed(range(_PARTS))]
    return torch.stack([nats, *(part.float() for part in parts)]).flatten()
