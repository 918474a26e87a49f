"""Why a trainer of an audited command is not audited: noted in the folder of records, so that `rlstep run` can say it at the end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rlstep_hooks.record import suite
from rlstep_hooks.record.variables import PARENT

if TYPE_CHECKING:
    from collections.abc import Collection

_SUFFIX = ".refused.txt"
_SHOWN = 8
"""Different reasons that are shown."""


def refused(reason: str) -> None:
    """Note that a trainer is not audited: in the table of tests where a test built it, else for `rlstep run`. Raises nothing."""
    folder = os.environ.get("RLSTEP_DIR")
    if suite.current_test():
        suite.refused(reason)
    elif folder and PARENT in os.environ:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            with (Path(folder) / f"{os.getpid()}{_SUFFIX}").open("a", encoding="utf-8") as file:
                file.write(" ".join(reason.split()) + "\n")
        except OSError:
            return  # the process has said it, and training goes on


def refusal_files(folder: Path) -> set[str]:
    """Names of the files with such notes."""
    return {path.name for path in folder.glob(f"*{_SUFFIX}")}


def refusals(folder: Path, before: Collection[str]) -> list[str]:
    """The different reasons that were noted in files that were not there before, the first few."""
    reasons: dict[str, None] = {}
    for name in sorted(refusal_files(folder) - set(before)):
        try:
            lines = (folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        reasons |= dict.fromkeys(lines)
    return list(reasons)[:_SHOWN]
