"""A moving average of trained weights against its formula, by some of its numbers: after each update it is
`(1 - kept) * weights + kept * average`, and between updates nothing writes to it.

Both models are read where they are, of what ZeRO-3 has cut the parts of this process. Nothing waits for a device until somebody
asks what was found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlstep_hooks.observe.deferred import DeferredValues
from rlstep_hooks.observe.shards import local_shards

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
        shards = zip(local_shards(weights), local_shards(averaged), strict=True)
        pairs = [(of, mean) for of, mean in shards if of.requires_grad and of.numel()]
        alike = all(of.numel() == mean.numel() for of, mean in pairs)
        self._pairs = pairs[:: max(len(pairs) // _TENSORS, 1)] if alike else []
        self._kept = kept
        self._looked: int | None = None
        """Updates before the latest look."""
        self._fetched: DeferredValues[tuple[int, int]] = DeferredValues()
        """Numbers of the weights and of the average, by updates and place in a pair."""
        self._arrived: dict[int, dict[int, Tensor]] = {}
        """Those that came of a look of which others are missing, by place in a pair."""
        self._known: tuple[int, Tensor] | None = None
        """The latest average that came, with the updates before it."""
        self._wrong = self._telling = 0
        """Numbers that are not those of the formula, and numbers that an update changes by more than rounding."""

    def look(self, updates: int) -> None:
        """Compare the average with the one of the look before; once for each update, where the next one begins or something is saved.

        Args:
            updates: Those that were made so far.
        """
        if not self._pairs or updates == self._looked:
            return
        self._looked = updates
        for place in (0, 1):
            self._fetched.add((updates, place), torch.cat([_some(pair[place]).float() for pair in self._pairs]))
        self._fetched.send()
        self._take(wait=False)

    def found(self) -> Found:
        """Whether the average was that of its formula since this was asked before; "unknown" where rounding hides all that updates
        change. Waits for the device, which happens where weights are saved anyway."""
        self._take(wait=True)
        wrong, telling = self._wrong, self._telling
        self._wrong = self._telling = 0
        if wrong:
            return "others"
        return "as saved" if telling else "unknown"

    def _take(self, *, wait: bool) -> None:
        """Compare what has come."""
        for (updates, place), numbers in self._fetched.tensors(wait=wait):
            self._arrived.setdefault(updates, {})[place] = numbers
        for updates in sorted(of for of, parts in self._arrived.items() if len(parts) == 2):
            parts = self._arrived.pop(updates)
            self._compare(updates, parts[0], parts[1])

    def _compare(self, updates: int, weights: Tensor, average: Tensor) -> None:
        known, self._known = self._known, (updates, average)
        if known is None or updates - known[0] != 1:
            return
        epsilon = torch.finfo(self._pairs[0][1].dtype).eps
        now, before, trained = (of.double() for of in (average, known[1], weights))
        due = (1 - self._kept) * trained + self._kept * before
        allowed = _ROUNDINGS * epsilon * ((1 - self._kept) * trained.abs() + self._kept * before.abs())
        self._wrong += int(((now - due).abs() > allowed).count_nonzero())
        self._telling += int(((due - before).abs() > allowed).count_nonzero())


def _some(parameter: Any) -> Tensor:
    numbers = parameter.detach().reshape(-1)
    return numbers[:: max(numbers.numel() // _NUMBERS, 1)][:_NUMBERS]
