"""A program of somebody's own whose parser takes the framework's settings and some of its own: what it takes is read in its file."""

from __future__ import annotations

import os.path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.checkout import find_checkout
from rlstep_hooks.launch.own_parser import parser_of
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.systems.engine import index

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.launch.command import Command, OwnParser
    from rlstep_hooks.systems.engine.declaration import System

_SCRIPT = "script:"


def with_parser(command: Command, file: Path | None, system: System) -> Command:
    """The command, with the parser of the Python file that it runs, where the framework has no program of this name.

    Args:
        command: The command.
        file: The Python file; None where it is not here.
        system: The system that its settings are known from.
    """
    if file is None or file.suffix != ".py" or system.keys is None:
        return command
    if any(command.program.matches(pattern) for pattern in system.keys.strict):
        return command
    found = _parser(file, command.folder or None, system)
    if found is None:
        return command
    return msgspec.structs.replace(command, parser=msgspec.structs.replace(found, program=command.program.name))


def with_reader(command: Command, folder: Path, system: System) -> Command:
    """The command of a configuration file alone, with the parser of the one program of the checkout that has a name of those known.

    Args:
        command: The command.
        folder: The folder that the file lies in.
        system: The system that its settings are known from.
    """
    names = [
        pattern.removeprefix(_SCRIPT)
        for entry in index.entries_of(system.name)
        for pattern in entry.programs
        if pattern.startswith(_SCRIPT)
    ]
    found = [
        msgspec.structs.replace(parser, program=os.path.relpath(file, copy.root))
        for name in names
        if "/" in name and "*" not in name
        for copy in find_checkout(name, [folder])
        if (parser := _parser(file := copy.package.parent / name, None, system)) is not None
    ]
    return msgspec.structs.replace(command, parser=found[0]) if len(found) == 1 else command


def _parser(file: Path, current: str | None, system: System) -> OwnParser | None:
    """The parser of a program, if it is given no dataclasses but those of the framework and of the checkout."""
    if system.keys is None or not system.keys.parsed:
        return None
    packages = frozenset(name.partition(".")[0] for name in system.keys.parsed)
    try:
        found = parser_of(file, current, packages)
    except (LaunchError, OSError):
        return None
    return found if found is not None and found.outside <= system.keys.parsed else None
