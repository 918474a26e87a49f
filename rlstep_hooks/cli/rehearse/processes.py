"""Ends the processes of a rehearsal, also those that are children of nobody, as Ray's are."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

_ROUNDS = 3
"""Times that processes are looked for; one that is being started when its parent ends is found the next time."""


def end(variable: str, value: str) -> None:
    """End every process of this user that has inherited an environment variable with this value.

    Only Linux says what another process has inherited; elsewhere nothing is found, and only the session of the script has ended.
    """
    mark = os.fsencode(f"{variable}={value}")
    for _ in range(_ROUNDS):
        found = [pid for pid in _processes() if pid != os.getpid() and mark in _environment(pid)]
        if not found:
            return
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _processes() -> list[int]:
    root = Path("/proc")
    return [int(path.name) for path in root.iterdir() if path.name.isdigit()] if root.is_dir() else []


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is somebody else's
        return []
