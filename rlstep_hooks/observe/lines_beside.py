"""Lines that other processes write beside a record, a file a process, and that the process which records takes up while it goes on."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_names: dict[int, str] = {}
"""What the files of this process are called, by its number: a fork has files of its own, and processes on several machines may have
one and the same number."""


class Files(msgspec.Struct, frozen=True):
    """The files of one kind, of all processes of a run."""

    beginning: str
    """What stands before the name of the process."""
    ending: str
    """The end of each file's name."""

    def of(self, folder: Path, run: str, process: str) -> Path:
        """The file of one process."""
        return folder / f"{run}.{self.beginning}{process}.{self.ending}"

    def write(self, folder: Path, run: str, line: msgspec.Struct) -> None:
        """Add a line to the file of this process.

        Raises:
            OSError: It cannot be written.
        """
        name = _names.setdefault(os.getpid(), uuid.uuid4().hex[:12])
        with self.of(folder, run, name).open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")


class NewLines:
    """Reads each line of the files of one kind once, when it is whole.

    Args:
        files: The kind.
        folder: The folder of the record.
        run: The run.
    """

    def __init__(self, files: Files, folder: Path, run: str) -> None:
        self._folder = folder
        self._pattern = files.of(folder, run, "*").name
        self._read: dict[Path, int] = {}
        """Bytes of each file that were read."""

    def __iter__(self) -> Iterator[bytes]:
        """The lines that were written since the last time.

        Raises:
            OSError: A file cannot be read.
        """
        for path in sorted(self._folder.glob(self._pattern)):
            start = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(start)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read[path] = start + len(whole) + len(newline)
            yield from whole.splitlines()
