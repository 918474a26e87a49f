"""One launch that is rehearsed, and what comes of it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path


class Case(Protocol):
    """A launch."""

    @property
    def status(self) -> int:
        """The exit status of its rehearsal; 0 for a healthy launch."""

    @property
    def said(self) -> str:
        """Part of what the rehearsal says."""

    @property
    def options(self) -> tuple[str, ...]:
        """Of `rlstep rehearse`."""

    def write(self, folder: Path) -> list[str]:
        """Write its files into an empty folder; the command."""


@dataclass(frozen=True)
class Published:
    """A launch of somebody else, as it stands in a checkout."""

    checkout: Path
    command: str
    part: str = "examples"
    """The folder of the checkout that the command needs."""
    options: tuple[str, ...] = ()
    status: int = 0
    said: str = ""
    edits: tuple[tuple[str, str], ...] = ()
    """What a user of the installed release has to write otherwise: text of the script, and what takes its place."""

    def write(self, folder: Path) -> list[str]:
        """Copy the folder, and write the edits into the script; the command."""
        shutil.copytree(self.checkout / self.part, folder / self.part)
        words = self.command.split()
        if self.edits:
            script = next(folder / word for word in words if (folder / word).is_file())
            text = script.read_text()
            for before, after in self.edits:
                text = text.replace(before, after)
            script.write_text(text)
        return words
