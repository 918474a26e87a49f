"""A moving average of trained weights against its formula, by some of its numbers: after each update it is
`(1 - kept) * weights + kept * average`, and between updates nothing writes to it.

Both models are read on their device, and nothing waits for it until somebody asks what was found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlstep_hooks.observe.saved_files import Found

_TENSORS, _NUMBERS = 16, 64
"""Tensors that are looked at, at even distances, and numbers of each."""
_ROUNDINGS = 2
"""Roundings, of the sizes of both shares, that an average in its own dtype explains."""


class AveragedWeights:
    """Follows the moving average of a model's weights.

    Args:
        weights: The parameters of the model.
        averaged: Those of its average, in the same order.
        kept: The share of the average that an update keeps.
    """

    def __init__(self, weights: Iterable[Any], averaged: Iterable[Any], kept: float) -> None:
        pairs = [(of, mean) for of, mean in zip(weights, averaged, strict=True) if of.requires_grad and of.numel()]
        # Where ZeRO-3 has cut the tensors, or one model waits on the host, they cannot be read together.
        whole = all(of.shape == mean.shape and of.device == mean.device for of, mean in pairs)
        self._pairs = pairs[:: max(len(pairs) // _TENSORS, 1)] if whole else []
        self._kept = kept
        self._updates = 0
        self._known: Tensor | None = None
        """The average when it was looked at last."""
        self._wrong: list[Tensor] = []
        """Numbers that are not those of the formula, of each look."""
        self._telling: list[Tensor] = []
        """Numbers that an update changes by more than rounding, of each look."""

    def look(self, updates: int) -> None:
        """Compare the average with the one of the look before; once for each update, where the next one begins or something is saved.

        Args:
            updates: Those that were made so far.
        """
        if not self._pairs or (self._known is not None and updates == self._updates):
            return
        known, made = self._known, updates - self._updates
        self._updates = updates
        weights, self._known = (torch.cat([_some(pair[place]) for pair in self._pairs]) for place in (0, 1))
        if known is None or made != 1:
            return
        epsilon = torch.finfo(self._known.dtype).eps
        now, before, trained = (of.double() for of in (self._known, known, weights))
        due = (1 - self._kept) * trained + self._kept * before
        allowed = _ROUNDINGS * epsilon * ((1 - self._kept) * trained.abs() + self._kept * before.abs())
        self._wrong.append(((now - due).abs() > allowed).count_nonzero())
        self._telling.append(((due - before).abs() > allowed).count_nonzero())

    def found(self) -> Found:
        """Whether the average was that of its formula since this was asked before; "unknown" where rounding hides all that updates
        change. Waits for the device, which happens where weights are saved anyway."""
        wrong, telling = (int(torch.stack(of).sum()) if of else 0 for of in (self._wrong, self._telling))
        self._wrong, self._telling = [], []
        if wrong:
            return "others"
        return "as saved" if telling else "unknown"


def _some(parameter: Any) -> Tensor:
    numbers = parameter.detach().reshape(-1)
    return numbers[:: max(numbers.numel() // _NUMBERS, 1)][:_NUMBERS]
