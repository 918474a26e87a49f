"""A launch that a system knows, with everything it sets, and a command that is none although it has a system's settings."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rlstep_hooks.launch.command import Command
from rlstep_hooks.launch.layers import Parent
from rlstep_hooks.launch.settings import Setting
from rlstep_hooks.launch.text import LaunchError, Place, UnknownText, UnknownValueError
from rlstep_hooks.planning.reading import Note


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """A command that a system knows, with everything it sets."""

    command: Command
    framework: str
    given: dict[str, Setting]
    source: str
    folder: Path
    notes: tuple[Note, ...] = ()
    missing: tuple[Parent, ...] = ()
    """Files that the launch names or inherits from and that are not here."""
    hidden: UnknownText | None = None
    """Values that a Python file gives to the framework's configuration and that cannot be known."""
    environment: dict[str, str] = {}
    """Variables that the command or `--set` sets, where their values are known."""
    keywords: frozenset[str] = frozenset()
    """Keywords ("Callee.keyword") that a Python file gives the framework's own classes in any run."""
    rounds: tuple[Launch, ...] = ()
    """The further runs of the same command with other settings: the further rounds of a loop, or further calls of a function."""
    others: tuple[Command, ...] = ()
    """All commands of the script, among which may be one that writes the training set."""


class Declined(msgspec.Struct, frozen=True):
    """A command with settings of a system that does not train with it, as far as can be known."""

    framework: str
    why: str
    place: Place
    remedy: str


def refuse_missing(missing: tuple[Parent, ...]) -> None:
    """Refuse to plan without this file: its settings are not guessed."""
    for parent in missing:
        if parent.unknown is not None:
            raise UnknownValueError(parent.what, parent.unknown)
        raise LaunchError(
            f"{parent.name} is not here, and what it sets decides the plan",
            parent.place,
            remedy="give the path under which it is, or run this where the file is",
        )
