"""A launch is read with the configuration files as its script has left them, which need not be as they are here."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from rlstep_hooks.launch.changed_files import ask_about, texts_of
from rlstep_hooks.launch.files import edited

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rlstep_hooks.launch.command import Command

_Read = TypeVar("_Read")


def as_changed(command: Command, folder: Path, read: Callable[[], _Read]) -> _Read:
    """What is read of a command, with the files as its script has left them.

    Args:
        command: The command.
        folder: The folder of its script.
        read: Reads it.

    Raises:
        LaunchError: It is a launch that is given a file which its script has changed in a way that is not known.
    """
    if not command.changed:
        return read()
    with edited(texts_of(command.changed)):
        found = read()
        given = getattr(found, "given", None)
        if given is not None:
            names = [*(token.text for token in command.arguments), *(each.place.source for each in given.values())]
            ask_about(command.changed, names, folder, command.folder)
    return found
