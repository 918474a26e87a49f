"""Rows of one micro-batch of each compared refresh, scored again alone (`clean_forward`).

For systems whose trainers compute old log-probs by a call of their own, micro-batch by micro-batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.clean_forward import CleanForward, CleanGap, fields_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rlstep_hooks.observe.clean_forward import Row
    from rlstep_hooks.observe.guard import GapRecorder

TOPIC = "clean_forward"
SHARED_OUT = "the model may be shared out among processes, and a forward of one of them alone would wait for the others"
OLD = "the old log-probs"


class ScoredRows:
    """Says which micro-batch of a refresh is looked at, and compares two of its rows.

    They are the one with the longest completion, which tells the most, and another.

    Args:
        recorder: Is told what cannot be scored.
    """

    def __init__(self, recorder: GapRecorder) -> None:
        self._recorder = recorder
        self.open = False
        """Whether old log-probs are being computed of which rows are scored."""
        self._impossible = False
        self._number = 0
        """Refreshes of which rows were scored."""
        self._seen = 0
        """Micro-batches of this refresh so far."""
        self._before = 1
        """Micro-batches of the refresh before."""
        self._found: dict[str, Any] = {}

    def begin(self) -> None:
        """Old log-probs are about to be computed."""
        self.open, self._seen, self._found = not self._impossible, 0, {}

    def end(self) -> dict[str, Any]:
        """Old log-probs are computed.

        Returns:
            Fields of `RolloutValues`; none where no row was scored.
        """
        if self.open:
            self.open, self._before = False, max(self._seen, 1)
            self._number += 1
        return self._found

    def wants(self) -> bool:
        """Count one more micro-batch, and say whether it is the one that is looked at.

        It is not always the same one, so that what is wrong in some rows is met in some refreshes.
        """
        place, self._seen = self._seen, self._seen + 1
        return self.open and place == self._number % self._before

    def cannot(self, why: str) -> None:
        """No row of this run can be scored alone."""
        self.open, self._impossible = False, True
        self._recorder.cannot(TOPIC, why)

    def compare(
        self, clean: CleanForward, rows: Sequence[Row], observed: Sequence[Tensor], tolerance: float, of: str = OLD
    ) -> None:
        """Score two rows again.

        Args:
            clean: Scores them.
            rows: The micro-batch.
            observed: (C,) each, the log-probs of each row's completion.
            tolerance: Mean distance that rounding explains.
            of: What these log-probs are.
        """
        places = [place for place, row in enumerate(rows) if row.length]
        if not places:
            return
        longest = max(places, key=lambda place: rows[place].length)
        found: list[tuple[str, CleanGap]] = []
        for place in {longest, places[self._number % len(places)]}:
            others = [rows[near] for near in sorted(places, key=lambda of: abs(of - place)) if near != place]
            scored = clean.score(rows[place])
            found.append((of, clean.compare(rows[place], scored, observed[place], tolerance, others)))
        self._found = fields_of(found)
