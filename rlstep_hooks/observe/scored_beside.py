"""Rows that are scored alone beside a forward of training (`rlstep_hooks.observe.forward_beside`).

What may explain a distance is scored with them, for no forward of the row can be made afterwards. Shapes: C tokens of a completion.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import msgspec
from torch import Tensor
from torch.nn.functional import linear

from rlstep_hooks.observe.clean_forward import PADDING_ATTENDED, CleanForward, CleanGap, Row, gap_of
from rlstep_hooks.observe.forward_beside import Beside, RowsBeside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.observe.guard import Guard


class PlacedRow(msgspec.Struct, frozen=True):
    """One row of a batch."""

    place: int
    row: Row


class ScoredBeside(msgspec.Struct, frozen=True):
    """What a forward of one row alone gives."""

    place: int
    row: Row
    log_probs: Tensor
    """(C,)."""
    entropies: Tensor
    """(C,), of what its tokens are drawn from."""
    others: list[tuple[str, Tensor]]
    """Log-probs (C,) of the row under mistakes, with what each is."""

    def of(self, values: Tensor) -> Tensor:
        """(C,), the part of (B, T) values that is the row's."""
        return values[self.place, : self.row.length]

    def gap(self, observed: Tensor, tolerance: float) -> CleanGap:
        """Compare (B, T) log-probs of training with those of the row alone, as `gap_of` does."""
        return self.gap_to(self.of(observed), tolerance)

    def gap_to(self, observed: Tensor, tolerance: float) -> CleanGap:
        """The same of (C,), the row's part of them."""
        return gap_of(self.log_probs, observed, tolerance, lambda: self.others)


class ScoringBeside:
    """Scores rows of one batch beside a forward of it.

    Args:
        model: For which `why_not_beside` is empty.
        temperature: By which logits are divided.
        guard: Contains errors inside the hooks.
    """

    def __init__(self, model: Any, temperature: float, guard: Guard) -> None:
        self._model = model
        self._temperature = temperature
        self._guard = guard
        self._found: list[ScoredBeside] = []

    def take(self) -> list[ScoredBeside]:
        """The rows that were scored, once."""
        found, self._found = self._found, []
        return found

    def beside(self, rows: Sequence[PlacedRow]) -> Beside:
        """The context in which these rows are scored, beside the first forward that is made in it."""
        self._found = []
        alone = [(of, RowsBeside(self._model, of.row.tokens.unsqueeze(0)), self._padded(of.row)) for of in rows]
        every = [of for _, clean, padded in alone for of in (clean, padded) if of is not None]
        return Beside(self._model, every, self._guard, functools.partial(self._score, alone))

    def _padded(self, row: Row) -> RowsBeside | None:
        """The row with the padding before it; None where it has none."""
        if not 0 < row.left < row.prompt:
            return None
        return RowsBeside(self._model, row.padded[: row.prompt + row.length].unsqueeze(0))

    def _score(
        self, alone: Sequence[tuple[PlacedRow, RowsBeside, RowsBeside | None]], weight: Tensor, bias: Tensor | None
    ) -> None:
        for of, passed, padded in alone:
            if passed.hidden is None:
                raise ValueError("training's forward left out modules that the row alone goes through")
            row = of.row
            clean = CleanForward(_Passed(passed.hidden[0], weight, bias), self._temperature)
            log_probs, entropies = clean.score_with_entropies(row)
            others = [*clean.of_outputs(passed.hidden[0], row)]
            if padded is not None and padded.hidden is not None:
                others.append((PADDING_ATTENDED, clean.score_outputs(padded.hidden[0], row)))
            self._found.append(ScoredBeside(of.place, row, log_probs, entropies, others))


class _Passed:
    """The forward of a row that has gone through the layers, while the weights of the head are there."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        self._hidden = hidden
        self._weight = weight
        self._bias = bias

    def outputs(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """(L, H), the output of the layers."""
        if positions is not None or tokens.shape[0] != self._hidden.shape[0]:
            raise ValueError("another row than the one that has gone through the layers")
        return self._hidden

    def logits(self, outputs: Tensor) -> Tensor:
        """(N, V), the head's, by its weights alone: its hooks would gather them."""
        return linear(outputs.to(self._weight.dtype), self._weight, self._bias)
