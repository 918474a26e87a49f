"""The commands that the Python file of a command starts, with the flags and the environment of that command."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from rlstep_hooks.launch.files import find_file
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.systems.engine.python_launch import flags_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.launch.command import Command


def started_by(command: Command, file: Path, folder: Path, given: Mapping[str, str]) -> list[Command]:
    """The commands that a Python file starts. A text that is not shell starts none.

    Args:
        command: The command that runs the file.
        file: The file.
        folder: The folder of the launch.
        given: What the user gives for what only the run knows (`--set`).
    """
    from rlstep_hooks.launch.python_commands import commands_in  # only where a file that trains nothing is run
    from rlstep_hooks.launch.shell.script import read_text

    environment = {name: None if token.unknown else token.text for name, token in command.environment.items()}
    texts = commands_in(file, flags_of(command), lambda name: find_file(name, folder, command.folder), environment)
    commands: list[Command] = []
    for found in texts:
        with suppress(LaunchError):
            commands += read_text(found.text, str(file), given=given, folder=folder)
    return commands
