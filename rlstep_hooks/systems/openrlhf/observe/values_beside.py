"""Values of two rows of one micro-batch, computed alone beside the forward of OpenRLHF's critic or reward model, with ZeRO-3.

ZeRO-3 gathers the weights of each module for its forward, so a forward of one process alone would wait for the others. Rows go through
the modules of the model while its own forward of a micro-batch uses them (`rlstep_hooks.observe.forward_beside`), and then through its
head. B samples, L tokens.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from rlstep_hooks.observe.clean_values import farthest, values_at_head
from rlstep_hooks.observe.forward_beside import (
    Beside,
    RowsBeside,
    is_sharded_by_modules,
    told_by_others,
    why_not_beside,
)
from rlstep_hooks.observe.guard import Guard
from rlstep_hooks.observe.scored_rows import SHARED_OUT, TOPIC, ScoredRows
from rlstep_hooks.systems.openrlhf.observe.values_alone import ComputedRow, fields_of_row, head_of, why_not_of_critic

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from rlstep_hooks.observe.guard import GapRecorder
    from rlstep_hooks.systems.openrlhf.observe.values_alone import Batch


class _Row(NamedTuple):
    """A row on its way through the critic."""

    tokens: Tensor
    """(L,), with padding."""
    attention: Tensor
    """(L,), 1 on real tokens."""
    counted: Tensor
    """(L - 1,), 1 where the token after a position is one of an answer."""
    passed: RowsBeside


class ValuesBeside:
    """Computes values of rows beside forwards of a critic or a reward model.

    Args:
        recorder: Is told what cannot be computed, and what went wrong.
    """

    def __init__(self, recorder: GapRecorder) -> None:
        self._scored = ScoredRows(recorder)
        self._guard = Guard(recorder, (TOPIC,))
        self._beside: Beside | None = None
        """The hooks of the forward that is being made."""
        self._seen = 0
        """Forwards of the call so far."""
        self._place = 0
        """The forward that rows went beside."""
        self._computed: list[ComputedRow] = []

    def begin(self) -> None:
        """Values are about to be computed, micro-batch by micro-batch."""
        self._scored.begin()
        self._seen, self._computed = 0, []

    def forward_begins(self, model: Any, batch: Callable[[], Batch], *, whole_rows: bool) -> None:
        """A forward begins: send rows of it beside it, if it is the one that is looked at.

        Args:
            model: The critic or the reward model, as it is called.
            batch: Gives what it is called with.
            whole_rows: Whether this process has whole rows, and whole matrices.
        """
        self._leave()
        place, self._seen = self._seen, self._seen + 1
        if not self._scored.wants():
            return
        critic = getattr(model, "module", model)
        if why := _why_not(critic, whole_rows=whole_rows):
            self._scored.cannot(why)
            return
        rows = _chosen(critic, batch(), place)
        if rows:
            self._place = place
            at_head = functools.partial(self._at_head, rows)
            self._beside = Beside(critic, [row.passed for row in rows.values()], self._guard, at_head, head_of(critic))
            self._beside.__enter__()

    def forward_ends(self) -> None:
        """The forward is done."""
        self._leave()

    def _at_head(self, rows: dict[int, _Row], weight: Tensor, bias: Tensor | None) -> None:
        for place, row in rows.items():
            values, sizes = values_at_head(row.passed, weight, bias)
            self._computed.append(ComputedRow(place, row.attention, row.counted, values, sizes))

    def end(self, critic: Any, results: Any) -> dict[str, Any]:
        """Values are computed: compare what came of them with what rows gave beside; waits for the device.

        Args:
            critic: The model itself.
            results: (B, L - 1) each, the values of each micro-batch, 0 where nothing counts.

        Returns:
            Fields of `MicroBatchValues`; none where no row was looked at.
        """
        computed, self._computed = self._computed, []
        self._scored.end()
        if not computed or self._place >= len(results):
            return {}
        found = farthest(fields_of_row(critic, row, results[self._place][row.place]) for row in computed)
        if found.get("clean_gap") and (why := told_by_others(critic)):
            self._scored.cannot(why)
            return {}
        return found

    def _leave(self) -> None:
        """Take the hooks off, also of a forward that raised."""
        beside, self._beside = self._beside, None
        if beside is not None:
            beside.__exit__()


def _why_not(critic: Any, *, whole_rows: bool) -> str:
    """Why no row can go beside a forward; empty where rows can."""
    if why := why_not_of_critic(critic):
        return why
    if not whole_rows or not is_sharded_by_modules(critic):
        return SHARED_OUT
    # models/model.py 0.11.2:272: the critic's own forward calls layers and head, and normalises what comes.
    return why_not_beside(critic, head_of(critic), "openrlhf.models.")


def _chosen(critic: Any, batch: Batch, turn: int) -> dict[int, _Row]:
    """Two rows of a micro-batch by their places: the one with the longest answer, and another."""
    tokens, attention, counted = batch
    lengths = counted.sum(1).tolist()
    places = [place for place, length in enumerate(lengths) if length]
    if not places:
        return {}
    found: dict[int, _Row] = {}
    for place in {max(places, key=lengths.__getitem__), places[turn % len(places)]}:
        real = tokens[place][attention[place].bool()].unsqueeze(0)
        found[place] = _Row(tokens[place], attention[place], counted[place], RowsBeside(critic, real))
    return found
