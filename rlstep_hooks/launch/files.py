"""Where a file that a launch names lies."""

from __future__ import annotations

import os.path
from pathlib import Path


def find_file(name: str, folder: Path, current: str | None = None) -> Path | None:
    """A file that a script or configuration names, if it is here.

    Launch scripts are started from their repository's root or from their own folder, which they do not say: it is looked for where the
    script is at that point, where `rlstep` runs, beside the script, and in the folders above it up to the repository's root.

    Args:
        name: The name as it is written.
        folder: The folder of the script or configuration.
        current: The folder in which the script is at that point, if that is known.
    """
    if not name or len(name) > 1000:
        return None
    above = [folder, *_up_to_root(folder)]
    places = [*([Path(current)] if current is not None else []), Path(), *above]
    return next((path for place in places if (path := place / name).is_file()), None)


def _up_to_root(folder: Path) -> list[Path]:
    """The folders above a folder, up to the root of its repository; none if it is in no repository."""
    path = Path(os.path.abspath(folder))
    above = [path, *path.parents]
    for marks in ((".git",), ("pyproject.toml", "setup.py")):
        root = next((place for place in above if any((place / mark).exists() for mark in marks)), None)
        if root is not None:
            return above[1 : above.index(root) + 1]
    return []
