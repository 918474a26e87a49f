"""Where the processes of a rehearsal may write: the temporary folder and scratch places, by Linux's Landlock where it is there.

Landlock holds for every process that comes of the script, whichever interpreter or program it is, and cannot be taken off again. Only
what is written is confined; everything may be read.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sysconfig
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

OLDEST = 2
"""The first version that lets files be moved from one folder to another (Linux 5.19), as checkpoints are."""

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # numbers of the calls, the same on x86-64 and on 64-bit ARM
_VERSION = 1
_PATH_BENEATH = 1
_NO_NEW_PRIVILEGES = 38
_WRITES = 0b1_1111_1111_0010 | 1 << 13
"""Writing, removing, and making files of each kind; moving between folders. Reading and executing are not in it."""
_TRUNCATE = 1 << 14
"""The right to shorten a file, which Landlock knows from its version 3 on."""

_CACHES = (
    *(
        "XDG_CACHE_HOME",
        "HF_HOME",
        "HF_HUB_CACHE",
        "HF_DATASETS_CACHE",
        "HF_MODULES_CACHE",
        "TRANSFORMERS_CACHE",
        "TORCH_HOME",
    ),
    *(
        "TORCH_EXTENSIONS_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
        "TRITON_HOME",
        "VLLM_CACHE_ROOT",
        "NUMBA_CACHE_DIR",
    ),
    *("CUDA_CACHE_PATH", "MPLCONFIGDIR", "PYTHONPYCACHEPREFIX", "RAY_TMPDIR"),
)
"""Environment variables that name a place for what can be made again."""
_OF_HOME = (".cache", ".triton", ".nv", ".cupy", ".config/vllm", ".config/matplotlib")
_OF_SYSTEM = ("/dev", "/proc", "/run/shm", "/tmp/ray")


class _Ruleset(ctypes.Structure):
    _fields_ = (("handled", ctypes.c_uint64),)


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def version() -> int:
    """The version of Landlock that this system has; 0 if it has none, or it is switched off."""
    if os.uname().sysname != "Linux":
        return 0
    found: int = _libc().syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    return max(found, 0)


def scratch(program: str, user_folder: Path, variables: dict[str, str]) -> list[str]:
    """The places beside its own folder that a rehearsal may write to: what can be made again.

    A place that the user's folder lies in is left out.

    Args:
        program: The interpreter of the launch; it keeps the bytecode of installed packages beside them.
        user_folder: Where the user started the rehearsal.
        variables: The environment of the child.
    """
    kept = user_folder.resolve()
    places = [Path(place).resolve() for place in _places(program, variables)]
    return sorted({str(place) for place in places if place.is_dir() and not kept.is_relative_to(place)})


def _places(program: str, variables: dict[str, str]) -> Iterator[str | Path]:
    yield from _OF_SYSTEM
    yield from (tempfile.gettempdir(), "/tmp", "/var/tmp")
    yield from (variables[name] for name in _CACHES if variables.get(name))
    yield from (Path.home() / name for name in _OF_HOME)
    yield from (sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    found = shutil.which(program, path=variables.get("PATH"))
    for path in (Path(found), Path(found).resolve()) if found else ():
        yield from (path.parent.parent / "lib").glob("python3*")


def confining(places: Sequence[str]) -> Callable[[], None] | None:
    """What a new process calls before the program begins, so that it and all that come of it write to these places only.

    Returns:
        The function; None where this system cannot.
    """
    known = version()
    if known < OLDEST:
        return None
    libc = _libc()
    rights = _WRITES | (_TRUNCATE if known >= 3 else 0)
    wanted = _Ruleset(rights)
    ruleset = libc.syscall(_CREATE, ctypes.byref(wanted), ctypes.c_size_t(ctypes.sizeof(wanted)), ctypes.c_uint32(0))
    if ruleset < 0:
        return None
    for place in places:
        folder = os.open(place, os.O_PATH | os.O_CLOEXEC)
        beneath = _Beneath(rights, folder)
        added = libc.syscall(_ADD, ruleset, ctypes.c_int(_PATH_BENEATH), ctypes.byref(beneath), ctypes.c_uint32(0))
        os.close(folder)
        if added < 0:
            os.close(ruleset)
            return None

    def confine() -> None:
        libc.prctl(_NO_NEW_PRIVILEGES, ctypes.c_ulong(1), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))
        if libc.syscall(_RESTRICT, ruleset, ctypes.c_uint32(0)) < 0:
            raise OSError(ctypes.get_errno(), "this process cannot be confined")

    return confine


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
