"""Rows of a training set that another command of the same script writes before it trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.launch.arguments import read_arguments
from rlstep_hooks.launch.files import is_allowed, up_to_root
from rlstep_hooks.launch.rows import RowCount
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.systems.engine.trains import file_of

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.systems.engine.declaration import System, Writes
    from rlstep_hooks.systems.engine.launch import Launch


def written_rows(system: System, launch: Launch) -> RowCount | None:
    """The rows that a program of the framework writes before a launch trains; None where the script starts none that is known.

    Args:
        system: The framework.
        launch: The launch, with the other commands of its script.
    """
    writes = system.rows_written
    if writes is None:
        return None
    started = [each for each in launch.others if each.program.matches(writes.program)]
    found = {_rows(each, writes) for each in started if not _is_absent(each, launch.folder)}
    rows = found.pop() if len(found) == 1 else None
    return RowCount(rows, f"written by {started[0].program.name}") if rows is not None else None


def _rows(command: Command, writes: Writes) -> int | None:
    """What the flag of a command says; None where only the run knows."""
    try:
        given, _ = read_arguments(command.arguments)
    except LaunchError:
        return None
    setting = given.get(writes.flag)
    if setting is None:
        return None if command.missing else writes.default
    text = str(setting.value)
    return int(text) if not setting.unknown and text.isdecimal() else None


def _is_absent(command: Command, folder: Path) -> bool:
    """Whether the package of a module is here, and the module is not: the command ends with an error, and writes nothing."""
    if command.program.kind != "module" or file_of(command, folder) is not None:
        return False
    package = command.program.name.partition(".")[0]
    places = (place / package for place in (folder, *up_to_root(folder)))
    return any(is_allowed(place) and place.is_dir() for place in places)
