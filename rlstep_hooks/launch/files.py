"""The files that a launch names: where they lie, and what they hold."""

from __future__ import annotations

import os.path
import re
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

NOTEBOOK = ".ipynb"
MAKEFILES = ("Makefile", "makefile", "GNUmakefile")

SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
_SHEBANG = re.compile(rb"#!\s*(?:\S*/)?(?:env\s+(?:-\S+\s+)*)?(?:ba|da|k|z)?sh\s")

_edited: ContextVar[Mapping[str, str] | None] = ContextVar("edited", default=None)
_root: ContextVar[Path | None] = ContextVar("root", default=None)


def holds_commands(path: str) -> bool:
    """Whether a file of this name is read for the commands in it."""
    name = path.rpartition("/")[2]
    return name.endswith((NOTEBOOK, ".mk", ".dockerfile")) or name in MAKEFILES or name.startswith("Dockerfile")


def is_shell_script(path: Path) -> bool:
    """Whether a file is a script of a shell: by its name, or by its first line (`#!/bin/bash` of "train.slrm")."""
    if path.name.endswith(SCRIPTS):
        return True
    with suppress(OSError):
        return path.is_file() and is_allowed(path) and _starts_a_shell(path)
    return False


def _starts_a_shell(path: Path) -> bool:
    with path.open("rb") as file:
        return _SHEBANG.match(file.readline(200)) is not None


def contents(path: Path) -> bytes:
    """What a file holds, or would hold within `edited`.

    Raises:
        OSError: It cannot be read, or lies outside of the folder of `confined`.
    """
    if not is_allowed(path):
        raise PermissionError(f"{path} lies outside of {_root.get()}")
    text = (_edited.get() or {}).get(os.path.abspath(path))
    return path.read_bytes() if text is None else text.encode()


def is_here(path: Path) -> bool:
    """Whether there is a file, or would be one within `edited`."""
    return path.is_file() or os.path.abspath(path) in (_edited.get() or {})


def size_of(path: Path) -> int:
    """The bytes of a file, or those that it would have within `edited`.

    Raises:
        OSError: It is not here.
    """
    text = (_edited.get() or {}).get(os.path.abspath(path))
    return path.stat().st_size if text is None else len(text.encode())


@contextmanager
def edited(texts: Mapping[str, str]) -> Iterator[None]:
    """Read launches within this context as if some files held other texts; nothing is written."""
    token = _edited.set({**(_edited.get() or {}), **{os.path.abspath(path): text for path, text in texts.items()}})
    try:
        yield
    finally:
        _edited.reset(token)


def is_allowed(path: Path) -> bool:
    """Whether a file may be read: links are followed, and outside of the folder of `confined` nothing is."""
    root = _root.get()
    return root is None or Path(os.path.realpath(path)).is_relative_to(root)


@contextmanager
def confined(root: Path) -> Iterator[None]:
    """Read within this context only files below a folder: for launches that somebody else names."""
    token = _root.set(Path(os.path.realpath(root)))
    try:
        yield
    finally:
        _root.reset(token)


def find_file(name: str, folder: Path, current: str | None = None, *, beside: Sequence[str] = ()) -> Path | None:
    """A file that a script or configuration names, if it is here.

    A launch script does not say whether it is started from the repository's root or from its own folder. So the file is searched in the
    working directory of the script at that point, where `rlstep` runs, beside the script, and in each folder above it up to the root.

    Args:
        name: The name as it is written.
        folder: The folder of the script or configuration.
        current: The folder in which the script is at that point, if that is known.
        beside: Folders in each of these that are looked in too.
    """
    if not name or len(name) > 1000:
        return None
    here = Path.cwd()
    if os.path.isabs(name) and not (os.path.exists(name) or is_here(Path(name))) and Path(name).is_relative_to(here):
        name = os.path.relpath(name, here)  # the script takes `$(pwd)` for its repository's root
    files = (place / inner / name for place in places_of(folder, current) for inner in ("", *beside))
    return next((path for path in files if is_allowed(path) and is_here(path)), None)


def places_of(folder: Path, current: str | None = None) -> list[Path]:
    """The folders in which a relative name of a script is looked for, in this order; see `find_file`.

    Args:
        folder: The folder of the script or configuration.
        current: The folder in which the script is at that point, if that is known.
    """
    return [*([Path(current)] if current else []), Path(), folder, *up_to_root(folder)]


def of_another_machine(name: str, folder: Path) -> Path | None:
    """The file of this repository that an absolute path means on the machine that a launch was written for; None if none is found.

    Args:
        name: The path as it is written.
        folder: The folder of the script or configuration.
    """
    return at_its_end(name, folder) if os.path.isabs(name) else None


def at_its_end(name: str, folder: Path, *, folders: bool = False) -> Path | None:
    """The file of this repository whose path is the end of one that begins as nothing does here; None if none is found.

    The repository lies at another place here, or `your/folder` stands for that place. The longest end of the path that its root has
    is the file. A name without a folder is not looked for: anybody has a `train.py`.

    Args:
        name: The path as it is written.
        folder: The folder of the script or configuration.
        folders: Whether a folder is looked for, and no file.
    """
    if len(name) > 1000 or os.path.exists(name) or ".." in Path(name).parts:
        return None
    root = [Path(os.path.abspath(folder)), *up_to_root(folder)][-1]
    if Path(name).is_relative_to(
        root
    ):  # the script's own path: the repository would have to have the file at that place
        return None
    parts = Path(name).parts[os.path.isabs(name) :]
    ends = (root.joinpath(*parts[first:]) for first in range(1, len(parts) - 1))
    return next((path for path in ends if is_allowed(path) and (path.is_dir() if folders else path.is_file())), None)


def misplaced(name: str, folder: Path) -> Path | None:
    """The file of this repository, from its root, that a path means by its end alone: the path lies in the repository and has no file.

    Args:
        name: The path as it is written, an absolute one.
        folder: The folder of the script.
    """
    root = [Path(os.path.abspath(folder)), *up_to_root(folder)][-1]
    path = Path(os.path.normpath(name))
    if len(name) > 1000 or not path.is_relative_to(root) or path.exists():
        return None
    parts = path.relative_to(root).parts
    ends = (Path(*parts[first:]) for first in range(1, len(parts) - 1))
    return next((end for end in ends if is_allowed(root / end) and (root / end).is_file()), None)


def up_to_root(folder: Path) -> list[Path]:
    """The folders above a folder, up to the root of its repository; none if it is in no repository."""
    path = Path(os.path.abspath(folder))
    above = [path, *path.parents]
    for marks in ((".git",), _PACKAGE):
        root = next((place for place in above if _has(place, marks)), None)
        if root is not None:
            return above[1 : above.index(root) + 1]
    unpacked = unpacked_roots(path)
    return above[1 : above.index(unpacked[-1]) + 1] if unpacked else []


_PACKAGE = ("pyproject.toml", "setup.py")
_OF_A_ROOT = (*_PACKAGE, "setup.cfg", ".gitignore", ".gitmodules", "LICENSE")
_OF_A_FOLDER = "README.md"
_HIGHEST = 4
"""Folders above a launch that are looked at for the root of a repository without `.git`."""


def unpacked_roots(path: Path) -> list[Path]:
    """The folders that may be the root of a repository without `.git` (an archive, a copy in a container), the nearest first.

    A folder with a file that repositories have at their root is one, and nothing above it. One with nothing but a README.md may be, or
    one above it. A home folder, the folder for temporary files and the root of the file system are none.

    Args:
        path: The folder of the launch, as an absolute path.
    """
    found: list[Path] = []
    for place in (path, *path.parents)[: _HIGHEST + 1]:
        if is_everybodys(place) or place == place.parent:
            break
        if _has(place, _OF_A_ROOT):
            return [*found, place]
        if _has(place, (_OF_A_FOLDER,)):
            found.append(place)
    return found


def is_everybodys(folder: Path) -> bool:
    """Whether a folder is the home folder or one for temporary files, in which what lies beside a launch need not belong to it.

    The standard library's `tempfile.gettempdir` finds the folder by writing a file to it; all that it may find are compared here.
    """
    named = (os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    return folder == Path.home() or str(folder) in (*_TEMPORARY, *(os.path.abspath(each) for each in named if each))


_TEMPORARY = ("/tmp", "/var/tmp", "/usr/tmp")


def _has(place: Path, names: Sequence[str]) -> bool:
    return any(os.path.exists(os.path.join(place, name)) for name in names)
