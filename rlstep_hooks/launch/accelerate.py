"""How many processes `accelerate launch` starts where it is given a configuration file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.files import find_file
from rlstep_hooks.launch.text import LaunchError

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.launch.command import Command


def with_config_read(command: Command, folder: Path) -> Command:
    """A command with the number of processes that accelerate's configuration gives, if the file is here.

    Args:
        command: The command.
        folder: The folder of the script that holds the command.
    """
    processes = command.processes
    if processes is None or not processes.config or processes.unknown is not None:
        return command
    file = find_file(processes.config, folder, command.folder)
    if file is None:
        return command
    count = processes_with(file, processes.count, distributed=processes.distributed)
    return msgspec.structs.replace(command, processes=msgspec.structs.replace(processes, count=count))


def processes_with(file: Path, given: int | None, *, distributed: bool = False) -> int | None:
    """The number of processes with a configuration of accelerate.

    `distributed_type: "NO"` starts one, whatever `num_processes` and `--num_processes` say (accelerate 1.15.0 commands/launch.py
    _validate_launch_command, launch_command: simple_launcher).

    Args:
        file: The configuration.
        given: What the options say, which goes before the file; None if they say nothing.
        distributed: Whether an option says how the processes work together.

    Returns:
        The number; None if neither says it, or the file cannot be read.
    """
    from rlstep_hooks.launch.yaml_file import parse_yaml, read_text

    try:
        settings = parse_yaml(read_text(file), str(file))
    except (OSError, LaunchError):
        return given
    kind, number = settings.get("distributed_type"), settings.get("num_processes")
    if kind is not None and kind.value == "NO" and not distributed:
        return 1
    if given is not None:
        return given
    whole = number is not None and isinstance(number.value, int) and number.value >= 1
    return number.value if number is not None and whole else None
