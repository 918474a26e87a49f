"""Whether the reference itself made the log-probs that a call to it gives: by its own forwards, and as these gave them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class ReferenceForwards:
    """The forwards that are made while log-probs are asked of the reference."""

    def __init__(self) -> None:
        self._engine: Any = None
        """The reference's; None where none is asked."""
        self._made = 0

    def begin(self, engine: Any) -> None:
        """Log-probs are asked of the model of an engine."""
        self._engine, self._made = engine, 0

    def counts(self, engine: Any) -> bool:
        """Whether a forward of an engine may give what is asked for; those of the reference are counted."""
        if self._engine is None:
            return True
        self._made += engine is self._engine
        return engine is self._engine

    def end(self, result: Any) -> bool | None:
        """The call has returned log-probs, the names of the samples that have got them, or, on some ranks, None.

        Returns:
            Whether there are log-probs although the reference made no forward; None where there are none.
        """
        made, self._engine = self._made, None
        return None if result is None else not made


def others(given: Sequence[Tensor], made: Sequence[Tensor] | None) -> int | None:
    """How many samples have other log-probs than the forwards gave; None where these are not known, or not all."""
    if made is None or any(row.device.type != "cpu" for row in given):
        return None
    return sum(not row.float().equal(of.float()) for row, of in zip(given, made, strict=True))
