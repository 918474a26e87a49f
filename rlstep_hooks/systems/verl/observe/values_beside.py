"""Values of two rows of one micro-batch, computed alone beside the forward of verl's critic, where several trainers share it out.

A forward of one process alone would wait for the others, so rows go through the modules of the critic while its own forward of a
micro-batch uses them (`rlstep_hooks.observe.forward_beside`), and then through its head.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from rlstep_hooks.observe.clean_values import farthest, values_at_head
from rlstep_hooks.observe.forward_beside import Beside, RowsBeside, inside_of, told_by_others, why_not_beside
from rlstep_hooks.observe.guard import Guard, contained
from rlstep_hooks.observe.scored_rows import TOPIC
from rlstep_hooks.systems.verl.observe.samples import completion_rows
from rlstep_hooks.systems.verl.observe.scored_alone import dtype_of, rows_and_lengths, why_not_of_rows
from rlstep_hooks.systems.verl.observe.values_alone import UNKNOWN_HEAD, fields_of_row, head_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from rlstep_hooks.observe.guard import GapRecorder
    from rlstep_hooks.observe.scored_rows import ScoredRows


class _Computed(NamedTuple):
    """What a row alone gives, on the device. L tokens."""

    place: int
    values: Tensor
    """(L,)."""
    sizes: Tensor
    """(L,), the sizes of what each value is added up from."""


class ValuesBesideForwards:
    """Computes values of rows beside forwards of the critic.

    Args:
        scored: Says which micro-batches are looked at, and is told what cannot be computed.
        recorder: Is told what went wrong.
    """

    def __init__(self, scored: ScoredRows, recorder: GapRecorder) -> None:
        self.recorder = recorder
        """Is told what went wrong."""
        self._scored = scored
        self._guard = Guard(recorder, (TOPIC,))
        self._computed: list[_Computed] = []
        """What was computed beside the latest forward, until it is compared."""

    @contextmanager
    def beside(self, engine: Any, data: Any) -> Iterator[None]:
        """Compute values of rows beside the forward of a micro-batch that is made in this context, if it is one that is looked at.

        Args:
            engine: verl's, of the critic, whose model is shared out (`rows_beside.goes_beside`).
            data: The micro-batch, on the CPU.
        """
        rows = self._begun(engine, data) or {}
        if not rows:
            yield
            return
        with self._hooks(engine, rows):
            yield

    def _hooks(self, engine: Any, rows: Mapping[int, RowsBeside]) -> Beside:
        """The hooks that take these rows through the critic, for as long as its forward is made."""
        at_head = functools.partial(self._at_head, rows)
        return Beside(inside_of(engine.module), [*rows.values()], self._guard, at_head, head_of(engine.module))

    @contained(TOPIC)
    def _begun(self, engine: Any, data: Any) -> dict[int, RowsBeside] | None:
        """The rows that go beside the forward, by their places; none where it is not looked at, or looking fails."""
        self._computed = []
        if not self._scored.wants():
            return None
        head = head_of(engine.module)
        why = UNKNOWN_HEAD if head is None else why_not_of_rows(data) or why_not_beside(inside_of(engine.module), head)
        if why:
            self._scored.cannot(why)
            return None
        rows, _ = rows_and_lengths(engine, data)
        chosen = (place for place, _ in self._scored.chosen(rows))
        model = inside_of(engine.module)
        return {place: RowsBeside(model, rows[place].tokens.unsqueeze(0)) for place in chosen}

    def _at_head(self, rows: Mapping[int, RowsBeside], weight: Tensor, bias: Tensor | None) -> None:
        for place, passed in rows.items():
            self._computed.append(_Computed(place, *values_at_head(passed, weight, bias)))

    def compare(self, engine: Any, data: Any, output: Any) -> dict[str, Any]:
        """Compare what the forward gave with what rows gave beside it; waits for the device.

        Args:
            engine: verl's.
            data: The micro-batch, on the CPU.
            output: The model's, on the device.

        Returns:
            Fields of `MicroBatchValues`; none where no row was looked at.
        """
        computed, self._computed = self._computed, []
        if not computed:
            return {}
        _, lengths = rows_and_lengths(engine, data)
        given = completion_rows(output["values"], lengths)
        found = farthest(
            fields_of_row(given[of.place], of.values, of.sizes, lengths[of.place], dtype_of(engine)) for of in computed
        )
        if found.get("clean_gap") and (why := told_by_others(inside_of(engine.module), "verl.")):
            self._scored.cannot(why)
            return {}
        return found
