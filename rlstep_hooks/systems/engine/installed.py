"""The releases that are installed where a launch is about to run. Only metadata are read; no framework is imported."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.systems.engine.request import release_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.systems.engine.declaration import System


def release_here(package: str) -> str:
    """The installed release of a package; empty where it is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # 15 ms that a plan of a launch does not need

    try:
        return version(package) if package else ""
    except PackageNotFoundError:
        return ""


def runs_here(command: Sequence[str]) -> bool:
    """Whether a command's Python is that of this environment: what is installed here is then what runs."""
    if not command:
        return False
    program = shutil.which(command[0])
    own = program is not None and any((Path(program).parent / name).exists() for name in ("python", "python3"))
    # A shell finds its Python on the path, as does a script that names none.
    shell = Path(command[0]).name in ("bash", "sh", "zsh", "env", "nohup", "time")
    python = program if own and not shell else shutil.which("python") or shutil.which("python3")
    return python is not None and Path(python).parent.resolve() == Path(sys.executable).parent.resolve()


def planned_here(system: System) -> str:
    """The installed release of a system's package; empty if there is none, or if its formulas are not known."""
    release = release_here(system.package)
    try:
        within = system.releases is None or (
            release_of(system.releases[0]) <= release_of(release) < release_of(system.releases[1])
        )
    except LaunchError:
        return ""
    return release if within else ""
