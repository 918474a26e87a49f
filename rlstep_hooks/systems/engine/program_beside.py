"""Where the program of a launch lies: the repository around it, and its path there."""

from __future__ import annotations

import os.path
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rlstep_hooks.launch.checkout import Checkout, find_checkout, nearest, repository_of
from rlstep_hooks.launch.files import unpacked_roots
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.systems.engine.trains import file_of

if TYPE_CHECKING:
    from rlstep_hooks.launch.command import Command


def program_beside(command: Command, folder: Path) -> tuple[Checkout, str] | None:
    """The repository that the program of a launch lies in, and its path there; None where it is not found, or found twice.

    Args:
        command: The launch.
        folder: The folder that it lies in.
    """
    file = file_of(command, folder)
    if file is not None:
        file = Path(os.path.realpath(file))
        root = repository_of(file.parent) or next(reversed(unpacked_roots(file.parent)), file.parent)
        return Checkout(root, root), os.path.relpath(file, root)
    if command.program.kind != "module":
        return None
    path = f"{command.program.name.replace('.', '/')}.py"
    with suppress(LaunchError):
        checkout = nearest(folder, find_checkout(path, [folder]), command.program.name, "")
        if checkout is not None and "/" in path:
            return checkout, path.partition("/")[2]
    return None
