"""Runs a training script under `rlstep run`, as a user would."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LIMIT = 300
"""Seconds that a command may take."""


def rlstep(*words: str) -> list[str]:
    """A command line of this package."""
    return [sys.executable, "-m", "rlstep_hooks", *words]


def run_script(
    folder: Path, script: str, *arguments: str, options: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Write a script into a folder and run it there; records go to `log` below it.

    Args:
        folder: Working directory of the command.
        script: The script's text.
        arguments: What the script is called with.
        options: More options of `rlstep run`.
    """
    (folder / "train.py").write_text(script)
    return subprocess.run(
        rlstep("run", *options, "--dir", "log", "--", sys.executable, "train.py", *arguments),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
