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

    def write(self, folder: Path) -> list[str]:
        """Copy the folder; the command."""
        shutil.copytree(self.checkout / self.part, folder / self.part)
        return self.command.split()
