"""Opens files of a folder of records: regular ones only, and never one that makes a reader wait."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path


class NoFileError(OSError):
    """A path is a pipe, a socket, a device or a folder."""


def is_regular(path: Path) -> bool:
    """Whether a path is a regular file, or a link to one."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):  # not there, a loop of links, a name that no file has
        return False


def open_file(path: Path) -> BinaryIO:
    """A regular file, to read.

    Raises:
        NoFileError: It is something else. A pipe without a writer is not waited for.
        OSError: It cannot be read.
    """
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise NoFileError(f"{path} is not a regular file")
    return open(number, "rb")
