"""Has a Python process write a copy where it would write outside of a rehearsal's folder, and read it from there again.

`site/sitecustomize.py` loads this file by its place, in every interpreter that a script starts: also in one that has neither this
package nor anything that it needs. So it imports nothing but the standard library.
"""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

_PATH = (str, os.PathLike)


def is_outside(path: Any, settings: dict[str, Any]) -> bool:
    """Whether a path lies in none of the places that may be written to. Python itself keeps bytecode or does without."""
    real = Path(os.path.realpath(path))
    may = [Path(place) for place in (settings["folder"], *settings["writable"])]
    may[0] = may[0].resolve()
    return real.parent.name != "__pycache__" and not any(real == place or place in real.parents for place in may)


def guard(settings: dict[str, Any]) -> None:
    """Change this process's `open` and `mkdir`.

    The script runs in a folder of links to the user's files, so only absolute paths and links lead outside. Where the system confines
    the script (`confine`), this lets a healthy one go on; elsewhere it is all that keeps the user's files.

    Args:
        settings: The rehearsal's.
    """
    written = Path(settings["folder"]).resolve() / "written"
    opened, made = builtins.open, os.mkdir
    copies: dict[str, str] = {}

    def copy_of(real: str) -> Path:
        return written / real.lstrip("/")

    def guarded(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, _PATH) and isinstance(os.fspath(file), str):
            real = os.path.realpath(file)
            if real in copies:
                file = copies[real]
            elif set(mode) & set("wax+") and is_outside(real, settings):
                copy = copy_of(real)
                os.makedirs(copy.parent, exist_ok=True)
                if os.path.isfile(real) and "w" not in mode:
                    shutil.copyfile(real, copy)
                copies[real] = file = str(copy)
        return opened(file, mode, *args, **kwargs)

    def aside(path: Any, mode: int = 0o777, *, dir_fd: Any = None) -> None:
        if dir_fd is not None:
            made(path, mode, dir_fd=dir_fd)
            return
        real = os.path.realpath(os.fspath(path)) if isinstance(path, _PATH) and isinstance(os.fspath(path), str) else ""
        if not real or not is_outside(real, settings) or os.path.exists(real):
            made(path, mode)
            return
        copy = copy_of(real)
        if copy.is_dir():  # what looks for the folder finds none, so that making it again is no fault of the script
            return
        if not os.path.isdir(os.path.dirname(real)) and not copy.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        os.makedirs(copy.parent, exist_ok=True)
        made(copy, mode)

    builtins.open = guarded
    io.open = guarded  # pathlib's
    os.mkdir = aside


def begin(variable: str) -> None:
    """Guard this process, if it is one of a rehearsal.

    Args:
        variable: The environment variable that names the file of the settings.
    """
    place = os.environ.get(variable)
    if place:
        with open(place, encoding="utf-8") as file:
            guard(json.load(file))
