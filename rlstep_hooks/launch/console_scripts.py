"""The module behind a command that a checkout installs: `train = "mine.train:main"` in the project's own file. Read as text."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.command import Command, Program
from rlstep_hooks.launch.files import contents, up_to_root

if TYPE_CHECKING:
    from pathlib import Path

_PROJECT = ("pyproject.toml", "setup.cfg", "setup.py")
"""Files that name a project's commands, each as `name = module:function`, with quotation marks or without."""


def as_module(command: Command, folder: Path) -> Command:
    """A command whose executable the checkout around it installs, as the module that is run; any other command as it is.

    Args:
        command: The command.
        folder: The folder of the launch script.
    """
    name = command.program.name
    if command.program.kind != "executable" or not re.fullmatch(r"[\w.-]+", name):
        return command
    named = re.compile(rb"(?m)(?:^|[\s\"'])%b[\"']?\s*=\s*[\"']?([\w.]+):\w+" % re.escape(name.encode()))
    for place in (folder.resolve(), *up_to_root(folder)):
        for file in _PROJECT:
            with suppress(OSError):
                found = {match.decode() for match in named.findall(contents(place / file))}
                if len(found) == 1:
                    return msgspec.structs.replace(command, program=Program("module", found.pop()))
    return command
