"""Reads the parts of all ranks from their records, update by update, in bounded memory and with one file open at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from rlstep_hooks.record.events import GradientParts, Unobserved
from rlstep_hooks.record.files import open_file
from rlstep_hooks.record.ledger import LONGEST_LINE
from rlstep_hooks.record.wire import decode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rlstep_hooks.record.events import AnyEvent

BLOCK = 1 << 20
"""Bytes that are searched at a time."""
MOST_WAITING = 8
"""Parts of later updates, or of another role, that wait to be asked for."""


class Lines:
    """Finds the events of one kind in a record, without reading the others.

    Args:
        path: The file of one process.
        tag: The kind, by the tag with which its lines begin (`record.wire`).
    """

    def __init__(self, path: Path, tag: str) -> None:
        self._path = path
        self._mark = b'{"event":"%s"' % tag.encode()
        self._offset = 0

    def next(self) -> AnyEvent | None:
        """The next event; None at the end. The file is open only meanwhile."""
        try:
            with open_file(self._path) as file:
                while self._seek(file):
                    line = file.readline(LONGEST_LINE)
                    self._offset += len(line)
                    try:
                        return decode(line)
                    except ValueError:
                        continue  # a damaged line is no event
        except OSError:
            pass
        return None

    def _seek(self, file: BinaryIO) -> bool:
        """Go to the next line that begins with the mark; False without one."""
        file.seek(self._offset)
        while block := file.read(BLOCK):
            at = block.find(self._mark)
            if at >= 0:
                self._offset += at
                file.seek(self._offset)
                return True
            # The mark may lie on the border of two blocks.
            self._offset += max(len(block) - len(self._mark) + 1, 1)
            file.seek(self._offset)
        return False


class PartsOfRank:
    """The parts of one rank, by update."""

    def __init__(self, path: Path) -> None:
        self._lines = Lines(path, "gradient_parts")
        self._waiting: list[GradientParts] = []

    def next(self) -> GradientParts | None:
        """The next parts; None at the end."""
        if self._waiting:
            return self._waiting.pop(0)
        return self._read()

    def of(self, wanted: GradientParts) -> GradientParts | None:
        """The parts of the same update; None where this rank has none. Updates come in their order."""
        for place, held in enumerate(self._waiting):
            if (held.role, held.update) == (wanted.role, wanted.update):
                return self._waiting.pop(place)
        if any(held.role == wanted.role and held.update > wanted.update for held in self._waiting):
            return None
        while len(self._waiting) < MOST_WAITING and (read := self._read()) is not None:
            if (read.role, read.update) == (wanted.role, wanted.update):
                return read
            if read.role != wanted.role or read.update > wanted.update:
                self._waiting.append(read)
            if read.role == wanted.role and read.update > wanted.update:
                return None
        return None

    def _read(self) -> GradientParts | None:
        while (event := self._lines.next()) is not None:
            if isinstance(event, GradientParts):
                return event
        return None


def why_not_followed(path: Path) -> str:
    """Why a process recorded no parts; empty if it does not say."""
    lines = Lines(path, "unobserved")
    while (event := lines.next()) is not None:
        if isinstance(event, Unobserved) and event.what == "reduction":
            return event.why
    return ""


def updates_of(ranks: list[PartsOfRank]) -> Iterator[list[GradientParts | None]]:
    """The parts of each update of the first rank, in the order of the ranks; None where a rank has none."""
    first, *others = ranks
    while (wanted := first.next()) is not None:
        yield [wanted, *(other.of(wanted) for other in others)]
