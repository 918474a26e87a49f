"""Where events are kept: a folder of JSON lines (one file per process), or memory; and reading them back.

A file belongs to one process of one run and is never reopened for writing. Its name is `<run>.<process>.jsonl`; the process is
`rank<k>`, `controller`, or a name of the framework's own (`engine0`). Each event is one line, and the events of one moment are one
`write`, so a killed process loses at most the events it was writing.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

import msgspec

from rlstep_hooks.planning.words import printable
from rlstep_hooks.record.events import AnyEvent, Attached, RunStarted
from rlstep_hooks.record.files import is_regular, open_file

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMORY_EVENTS = 100_000
"""Events that a memory ledger keeps. The oldest are dropped first, so that memory use is constant."""

NO_FOLDER = "records are written to a local folder; `rlstep run --copy-to URL` copies them"
"""The message when a URL is given as the folder."""

CONTROLLER = "controller"
"""The process that makes rollouts and calls the trainers, in runs that have one."""

BELOW = "rlstep"
"""The folder of records in the output folder of a trainer."""

LONGEST_LINE = 1 << 24
"""A line with more bytes is not an event. The longest real events (rollouts of many thousand samples) have a tenth of this."""

MOST_DAMAGED = 1_000
"""Lines of a file that are no events before the rest of it is not read."""

_NAME = re.compile(r"(?P<run>.+)\.(?P<process>controller|[a-z]+\d+)\.jsonl")


def is_url(place: str) -> bool:
    """Whether a place is a URL rather than a folder of this machine."""
    return "://" in place


def rank_process(rank: int) -> str:
    """The name of a trainer in its run."""
    return f"rank{rank}"


class Ledger(Protocol):
    """Keeps one process's events."""

    @property
    def checksum(self) -> int:
        """Checksum of the lines written so far; 0 if they are not written to a file here."""

    def write(self, *events: AnyEvent) -> None:
        """Keep the events of one moment."""

    def close(self) -> None:
        """Close the ledger: no more events will come."""


class MemoryLedger:
    """Keeps the latest events in memory."""

    checksum = 0

    def __init__(self) -> None:
        self.events: deque[AnyEvent] = deque(maxlen=MEMORY_EVENTS)

    def write(self, *events: AnyEvent) -> None:
        """Keep the events of one moment."""
        self.events.extend(events)

    def close(self) -> None:
        """Nothing to do."""


class FolderLedger:
    """One process's file in a folder.

    Raises:
        OSError: The folder or the file cannot be made, or the file exists already (it is never opened again).
    """

    def __init__(self, folder: Path, run: str, process: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{run}.{process}.jsonl"
        self._counted = 0, 0
        """Checksum of the lines written so far, and bytes of the file."""
        self._under_way = b""
        """The lines that are being written."""
        self._torn = False
        """Whether the file may end within a line."""
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)

    @property
    def checksum(self) -> int:
        """Checksum of the lines written so far."""
        self._count_what_was_broken_off()
        return self._counted[0]

    def write(self, *events: AnyEvent) -> None:
        """Append one line per event, all in one write.

        Raises:
            OSError: The disk is full or the file is gone.
        """
        from rlstep_hooks.record.wire import encode

        self.append(encode(*events))

    def append(self, lines: bytes) -> None:
        """Append whole lines in one write.

        Raises:
            OSError: The disk is full or the file is gone.
        """
        self._count_what_was_broken_off()
        if self._torn:  # the line that the disk took a part of stays one damaged line
            lines = b"\n" + lines
        self._under_way = lines
        written = os.write(self._file, lines)
        checksum, size = self._counted
        if written != len(lines):
            self._torn = self._torn or written > 0
            self._counted = checksum, size + written
            self._under_way = b""
            raise OSError("the disk took only part of a line")
        self._torn = False
        self._counted = zlib.crc32(lines, checksum), size + written
        self._under_way = b""

    def _count_what_was_broken_off(self) -> None:
        """Count lines whose writing an interrupt broke off, if they are in the file.

        Ctrl-C and SIGTERM are answered right after the write that they come in: the lines are there, and nobody has counted them.
        """
        lines, (checksum, size) = self._under_way, self._counted
        if lines and os.fstat(self._file).st_size == size + len(lines):
            self._torn = False
            self._counted = zlib.crc32(lines, checksum), size + len(lines)
        self._under_way = b""

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Opened(msgspec.Struct, frozen=True):
    """The ledger that could be opened for a process."""

    ledger: Ledger
    folder: Path | None
    """The folder; None if events are kept in memory."""
    trouble: str = ""
    """Why the ledger is not in the folder that was asked for; empty if it is."""


def open_ledger(wanted: str | os.PathLike[str] | None, run: str, process: str) -> Opened:
    """Open a process's file in a folder, or memory if no folder is wanted or it cannot be written."""
    if wanted is None:
        return Opened(MemoryLedger(), None)
    folder = Path(wanted)
    if is_url(os.fspath(wanted)):
        return Opened(MemoryLedger(), None, f"nothing is recorded in {wanted}: {NO_FOLDER}")
    try:
        return Opened(FolderLedger(folder, run, process), folder)
    except OSError as error:
        return Opened(MemoryLedger(), None, f"nothing is recorded in {folder}: {type(error).__name__}: {error}")


class Record(msgspec.Struct, frozen=True):
    """One process's file."""

    path: Path
    run: str
    process: str

    @property
    def rank(self) -> int | None:
        """The trainer's rank; None for any other process."""
        return int(self.process[4:]) if self.process.startswith("rank") else None

    def events(self) -> Iterator[AnyEvent]:
        """The file's events in order, one line at a time. Skips lines that are not events; see `problems`."""
        for event, _ in read_lines(self.path):
            if event is not None:
                yield event

    def problems(self) -> list[str]:
        """What could not be read in this file, in words."""
        return [problem for _, problem in read_lines(self.path) if problem]

    def ends_within_a_line(self) -> bool:
        """Whether the file ends in the middle of a line: its process was killed while writing, or the file was cut."""
        with open_file(self.path) as file:
            size = file.seek(0, os.SEEK_END)
            return size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """Each line of a file, in constant memory. A line that is longer than any event comes in part, and is the last one: what follows
    may be a hole of any size."""
    for line in iter(partial(file.readline, LONGEST_LINE), b""):
        yield line
        if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
            return


def read_lines(path: Path) -> Iterator[tuple[AnyEvent | None, str]]:
    """Each line of a file: an event, or None and what is wrong with the line.

    Raises:
        OSError: It cannot be read, or is no regular file.
    """
    from rlstep_hooks.record.wire import (
        decode,
    )  # takes 10 ms to load, for which the command of `rlstep run` does not wait

    damaged = 0
    with open_file(path) as file:
        for number, line in enumerate(lines_of(file), 1):
            if not line.endswith(b"\n") and len(line) < LONGEST_LINE:
                yield None, f"{path.name}: ends within line {number}"
                continue
            try:
                yield decode(line), ""
            except ValueError as error:
                damaged += 1
                if damaged == MOST_DAMAGED:
                    yield None, f"{path.name}: {given_up(number)}"
                    return
                yield None, f"{path.name}: line {number} is not an event ({printable(str(error))})"


def given_up(line: int) -> str:
    """Why the rest of a file is not read."""
    return f"{MOST_DAMAGED} of the first {line} lines are no events; the rest is not read"


def record_files(folder: Path) -> dict[str, list[Record]]:
    """The records of a folder by run, without reading them: trainers by rank, then the others. Other files are ignored, and so is what
    is no regular file or has a name that cannot be printed."""
    runs: dict[str, list[Record]] = {}
    for path in folder.glob("*.jsonl"):
        match = _NAME.fullmatch(path.name) if path.name.isprintable() else None
        if match and is_regular(path):
            record = Record(path, match["run"], match["process"])
            runs.setdefault(record.run, []).append(record)
    for found in runs.values():
        found.sort(key=lambda record: (record.rank is None, record.rank or 0, record.process))
    return runs


def records(folder: Path) -> dict[str, list[Record]]:
    """The records of a folder as in `record_files`, oldest run first; of a trainer's output folder, those in `rlstep/` below it."""
    found = record_files(folder) or record_files(folder / BELOW)
    return dict(sorted(found.items(), key=lambda item: (_started(item[1]), item[0])))


def _started(found: list[Record]) -> float:
    """When a run began; if no first line can be read, when its newest file was last written."""
    for record in found:
        first = next(record.events(), None)
        if isinstance(first, RunStarted | Attached):
            return first.started
    return found[0].path.stat().st_mtime
