"""A program of somebody's own that is not here: what it makes of its settings is not known, only whether they are the framework's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.launch.arguments import read_arguments
from rlstep_hooks.systems.engine.checked import is_taken
from rlstep_hooks.systems.engine.keys import key_list
from rlstep_hooks.systems.engine.trains import file_of, is_own

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.systems.engine.declaration import System


def is_absent(command: Command, system: System, folder: Path) -> bool:
    """Whether a launch's program is a Python file that is not here and may be anybody's.

    Args:
        command: The command.
        system: The system that its settings are known from. Only some are used by programs of anybody's: those whose classes are named.
        folder: The folder of the launch script.
    """
    program = command.program
    of_anybody = bool(system.trainers) and program.kind == "script" and program.name.endswith(".py")
    return of_anybody and file_of(command, folder) is None


def flags_of_its_own(command: Command, system: System) -> list[str]:
    """The flags of a command, as they are written, that no release of the framework has; none for a program that it names itself."""
    if system.keys is None or is_own(command.program, system):
        return []
    keys, known = system.keys, key_list(system.keys.file)
    settings, _ = read_arguments(command.arguments)
    return [
        setting.written.partition("=")[0]
        for name, setting in settings.items()
        if not known.ever(name) and not is_taken(keys, known, name)
    ]
