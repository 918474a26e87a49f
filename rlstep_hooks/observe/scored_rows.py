"""Rows of one micro-batch of each compared refresh, scored again alone (`clean_forward`).

For systems whose trainers compute old log-probs by a call of their own, micro-batch by micro-batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from torch import Tensor

from rlstep_hooks.observe.clean_forward import CleanForward, CleanGap, Row, fields_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rlstep_hooks.observe.guard import GapRecorder

TOPIC, REFERENCE_TOPIC = "clean_forward", "clean_reference"
SHARED_OUT = "the model may be shared out among processes, and a forward of one of them alone would wait for the others"
OLD = "the old log-probs"


class Scored(msgspec.Struct, frozen=True):
    """One row of a micro-batch, scored alone."""

    place: int
    row: Row
    neighbours: list[Row]
    """Other rows of the micro-batch, nearest first."""
    log_probs: Tensor
    """(C,), of a forward of the row alone."""
    entropies: Tensor
    """(C,), of what its tokens are drawn from."""


class ScoredRows:
    """Says which micro-batches of a refresh, or of another call, are looked at, and compares two of their rows.

    They are the one with the longest completion, which tells the most, and another.

    Args:
        recorder: Is told what cannot be scored.
        topic: What that is.
        looks: Micro-batches of a call that are looked at, at equal distances.
    """

    def __init__(self, recorder: GapRecorder, topic: str = TOPIC, *, looks: int = 1) -> None:
        self._recorder = recorder
        self._topic = topic
        self._looks = looks
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
        steps = (look * self._before // self._looks for look in range(self._looks))
        return self.open and place in {(self._number + step) % self._before for step in steps}

    def cannot(self, why: str) -> None:
        """No row of this run can be scored alone."""
        self.open, self._impossible = False, True
        self._recorder.cannot(self._topic, why)

    def score(self, clean: CleanForward, rows: Sequence[Row]) -> list[Scored]:
        """Score two rows of a micro-batch, whose log-probs and entropies training has not computed yet."""
        return [
            Scored(place, rows[place], others, *clean.score_with_entropies(rows[place]))
            for place, others in self.chosen(rows)
        ]

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
        found: list[tuple[str, CleanGap]] = []
        for place, others in self.chosen(rows):
            scored = clean.score(rows[place])
            found.append((of, clean.compare(rows[place], scored, observed[place], tolerance, others)))
        if found:
            self.tell(fields_of(found))

    def tell(self, found: dict[str, Any]) -> None:
        """Keep what was found of this refresh, as fields of `RolloutValues`."""
        self._found = found

    def chosen(self, rows: Sequence[Row]) -> Iterator[tuple[int, list[Row]]]:
        """Give the places of two rows, each with the other rows, nearest first."""
        places = [place for place, row in enumerate(rows) if row.length]
        if places:
            longest = max(places, key=lambda place: rows[place].length)
            for place in {longest, places[self._number % len(places)]}:
                yield place, [rows[near] for near in sorted(places, key=lambda of: abs(of - place)) if near != place]


def fields_of_reference(found: dict[str, Any]) -> dict[str, Any]:
    """The fields of `RolloutValues` about the reference's log-probs, of those about old log-probs; none where no row was scored."""
    names = {
        "reference_clean_gap": "clean_gap",
        "reference_clean_max": "max_clean_gap",
        "reference_clean_like": "clean_like",
    }
    return {name: found[of] for name, of in names.items()} if found else {}
