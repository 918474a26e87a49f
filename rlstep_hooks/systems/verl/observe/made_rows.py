"""What the forwards of one call of the controller gave for each sample, before anything puts the micro-batches together again.

What a call returns was sorted, cut and copied on its way from the forwards (workers/engine/utils.py 0.9.1 `postprocess_batch_func`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.verl.observe.samples import completion_rows, keys_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rlstep_hooks.systems.verl.observe.samples import Key


class MadeRows:
    """Numbers of the completions' tokens, micro-batch by micro-batch."""

    def __init__(self) -> None:
        self._made: list[tuple[list[Key], Any, list[int]]] = []

    def begin(self) -> None:
        """Another call begins."""
        self._made = []

    def add(self, data: Any, values: Any) -> None:
        """A forward was made.

        Args:
            data: The micro-batch, on the CPU.
            values: What the model computed, one number a position of the whole sequences, on the device.
        """
        tokens, keys = rows_of(data, "responses"), keys_of(data)
        if tokens is not None and keys is not None:
            self._made.append((keys, values.detach(), [len(row) for row in tokens]))

    def take_all(self) -> dict[Key, Tensor]:
        """The rows of all samples on the CPU. The device has computed them by now."""
        made, self._made = self._made, []
        found: dict[Key, Tensor] = {}
        for of, values, lengths in made:
            found |= zip(of, completion_rows(values.cpu(), lengths), strict=True)
        return found

    def take(self, keys: Sequence[Key] | None) -> list[Tensor] | None:
        """The rows of these samples on the CPU; None where some are not known."""
        found = self.take_all()
        return [found[key] for key in keys] if keys and all(key in found for key in keys) else None
