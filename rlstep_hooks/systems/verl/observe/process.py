"""What every observed process of a verl run knows of itself: its folder, and the releases in it."""

from __future__ import annotations

import os
from pathlib import Path

from rlstep_hooks.observe.versions import versions_of
from rlstep_hooks.systems.verl.observe.environment import FOLDER

OBSERVED_SINCE = "0.9"
"""First release whose hooks were verified by real training; earlier ones get a plan and nothing else."""


def folder() -> Path:
    """Where this process records."""
    return Path(os.environ[FOLDER])


def versions() -> dict[str, str]:
    """Releases of the packages involved."""
    return versions_of("verl", "torch", "ray", "transformers")
