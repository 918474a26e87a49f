"""Configuration files that a script changes before it runs a launch: `sed -i` and `yq -i` on a file of the checkout, `cat > FILE`."""

from __future__ import annotations

import os.path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.files import find_file
from rlstep_hooks.launch.text import LaunchError, Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

KINDS = (".yaml", ".yml", ".toml")
"""Names of files that are followed; what a script makes of its sources and logs is not."""


class Changed(msgspec.Struct, frozen=True):
    """What a script has made of a file."""

    text: str | None
    """What the file holds then; None where that cannot be told."""
    place: Place
    """Where the script changes it."""


def texts_of(changed: Mapping[str, Changed]) -> dict[str, str]:
    """The files whose contents are known, for `files.edited`."""
    return {path: each.text for path, each in changed.items() if each.text is not None}


def ask_about(changed: Mapping[str, Changed], names: Iterable[str], folder: Path, current: str | None) -> None:
    """Ask where a launch reads a file that its script has changed in a way that is not known.

    Args:
        changed: What the script has changed before the launch.
        names: The files that the launch reads, as they are named.
        folder: The folder of the script.
        current: The folder in which the script is at that point, if that is known.

    Raises:
        LaunchError: It does.
    """
    unknown = {os.path.realpath(path): each for path, each in changed.items() if each.text is None}
    for name in (each.rpartition("=")[2] for each in names) if unknown else ():
        path = find_file(name, folder, current) if name.endswith(KINDS) else None
        change = unknown.get(os.path.realpath(path)) if path is not None else None
        if change is not None:
            raise LaunchError(
                f"{name}, which the launch reads, is written anew before it runs: what it holds then is not known",
                change.place,
                remedy="make that change and plan the command alone, or give what it sets in the command",
            )
