"""Reads a record that is still being written."""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING

from rlstep_hooks.planning.words import printable
from rlstep_hooks.record.events import (
    AnyEvent,
    EpochEnd,
    Generated,
    Judged,
    MicroBatch,
    Phase,
    PhaseEnded,
    Received,
    Refresh,
    Rollout,
    RunStarted,
    Unobserved,
    Update,
    WeightSync,
)
from rlstep_hooks.record.files import is_regular, open_file
from rlstep_hooks.record.ledger import LONGEST_LINE, MOST_DAMAGED, given_up, lines_of
from rlstep_hooks.record.wire import decode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_NEWLINE = ord("\n")
_END = b'{"event":"run_ended"'
_WRITTEN = re.compile(rb'"written":(\d{1,10})\b')

_PLACED = (Rollout, Generated, Received, Refresh, MicroBatch, Update, WeightSync, EpochEnd, Phase, PhaseEnded)
"""Events that have a place in the run: what happens again has another time."""

OF_WHOLE_RECORDS = ("order", "versions", "learning_rate")
"""Topics of what is counted, or compared with the event before: a damaged line leaves them unknown from there on."""


class Tail:
    """Gives the events that were added to a file since the last read. An incomplete last line waits for the next read.

    A line that is not an event, or that a recorder does not write at its place, becomes `Unobserved`: later lines can be read, but
    neither the order of events nor what is counted by them can be judged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = False
        """Whether a line so far is damaged."""
        self._offset = 0
        self._line = 0
        self._before: AnyEvent | None = None
        self._began = self._over = False
        self._bad = 0
        """Lines that are no events."""

    def read(self) -> Iterator[AnyEvent]:
        """The new events."""
        if not is_regular(self.path) or self._bad >= MOST_DAMAGED:
            return
        with open_file(self.path) as file:
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
                    self._bad += 1
                    yield from self._damage(f"is not an event ({printable(str(error))})")
                    if self._bad >= MOST_DAMAGED:
                        yield Unobserved(what="recording", why=f"{self.path.name}: {given_up(self._line)}")
                        return
                    continue
                out_of_place = self._out_of_place(event)
                if out_of_place:
                    yield from self._damage(out_of_place)
                else:
                    yield event

    def _out_of_place(self, event: AnyEvent) -> str:
        """Why a recorder did not write this event here; empty if it may have."""
        before, self._before = self._before, event
        if self._over:
            return "stands after the end of the record"
        if isinstance(event, RunStarted):
            again, self._began = self._began, True
            return "begins the run again" if again else ""
        self._over = isinstance(event, Judged)
        again = type(event) in _PLACED and event.at > 0.0 and event == before
        return "repeats the line before" if again else ""

    def _damage(self, what: str) -> Iterator[AnyEvent]:
        if self.damaged and self._over:  # whatever stands after the end is named once
            return
        self.damaged = True
        yield from unknown_from_here(f"{self.path.name}: line {self._line} {what}")


def unknown_from_here(why: str) -> Iterator[AnyEvent]:
    """The events that say that lines are lost, repeated or moved: nothing of the order of events can be judged after them."""
    for topic in OF_WHOLE_RECORDS:
        yield Unobserved(what=topic, why=why)


def other_than_recorded(path: Path) -> str:
    """What tells that a finished record does not hold what its process wrote; empty if nothing does.

    A process writes the checksum of its lines at the end of its record. Lines that were lost, repeated or moved are events all the
    same, so that nothing else shows them. Where a single line is damaged, `Tail` names it.
    """
    checksum = 0
    with open_file(path) as file:
        for line in lines_of(file):
            if line.startswith(_END):
                break
            checksum = zlib.crc32(line, checksum)
        else:
            return ""
    written = _WRITTEN.search(line)
    if written is None or int(written[1]) == checksum or has_damaged_line(path):
        return ""
    return f"{path.name} does not hold what its process wrote: its checksum differs, so lines were lost, repeated, moved or changed"


def has_damaged_line(path: Path) -> bool:
    """Whether a line of a record is no event, or stands where a recorder does not write it."""
    tail = Tail(path)
    return any(tail.damaged for _ in tail.read())
