"""What every observed process of a verl run knows of itself: its folder, its run, and the releases in it."""

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


def run_name() -> str:
    """The name of the run, the same in all its processes: Ray's session and job.

    Raises:
        LookupError: This process has no Ray (the driver before it starts one).
    """
    import ray

    if not ray.is_initialized():
        raise LookupError("Ray is not running in this process")
    context = ray.get_runtime_context()
    return f"{context.get_session_name().removeprefix('session_')}-{context.get_job_id()}"


def versions() -> dict[str, str]:
    """Releases of the packages involved."""
    return versions_of("verl", "torch", "ray", "transformers")
