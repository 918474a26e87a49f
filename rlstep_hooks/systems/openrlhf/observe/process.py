"""What every observed process of an OpenRLHF run knows about itself: the folder, the run, the releases, and the wrappers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rlstep_hooks.observe import processes
from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.observe.versions import versions_of
from rlstep_hooks.systems.openrlhf.observe.environment import FOLDER, RUN

if TYPE_CHECKING:
    from rlstep_hooks.record.events import Attached

OBSERVED_SINCE = "0.11"
"""First release whose hooks were verified by real training; earlier ones get a plan and nothing else."""

patches = Patches()
"""All wrappers of this process, except those on a controller's own trainer, which are taken off when its record ends."""


def folder() -> Path:
    """Where this process records."""
    return Path(os.environ[FOLDER])


def run_name() -> str:
    """The name of the run, the same in all its processes."""
    return os.environ[RUN]


def introduce(process: str, world_size: int = 1) -> Attached:
    """A record's first line."""
    return processes.introduce(run_name(), process, versions(), world_size)


def versions() -> dict[str, str]:
    """Releases of the packages involved."""
    return versions_of("openrlhf", "deepspeed", "vllm", "torch", "ray", "transformers")
