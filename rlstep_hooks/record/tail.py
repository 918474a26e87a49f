"""Reads a record that is still being written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.record.events import AnyEvent, Unobserved
from rlstep_hooks.record.ledger import LONGEST_LINE, lines_of
from rlstep_hooks.record.wire import decode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_NEWLINE = ord("\n")

_OF_WHOLE_RECORDS = ("order", "versions", "learning_rate")
"""Topics of what is counted, or compared with the event before: a damaged line leaves them unknown from there on."""


class Tail:
    """Gives the events that were added to a file since the last read. An incomplete last line waits for the next read.

    A line that is not an event becomes `Unobserved`: later lines can be read, but neither the order
    of events nor what is counted by them can be judged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._line = 0

    def read(self) -> Iterator[AnyEvent]:
        """The new events."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            for line in lines_of(file):
                size = len(line)
                if line[-1] != _NEWLINE and size < LONGEST_LINE:
                    return
                self._offset += size
                self._line += 1
                try:
                    event = decode(line)
                except ValueError as error:
                    yield from self._damaged(f"is not an event ({error})")
                    continue
                yield event

    def _damaged(self, what: str) -> Iterator[AnyEvent]:
        for topic in _OF_WHOLE_RECORDS:
            yield Unobserved(what=topic, why=f"{self.path.name}: line {self._line} {what}")
