"""What a process of a run that another process controls does first: it says who it is, and waits for the modules that it hooks."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import wrapt

from rlstep_hooks.record.events import Attached
from rlstep_hooks.record.ledger import FolderLedger
from rlstep_hooks.record.logger import not_evaluated

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def when_imported(module: str, place: Callable[[Any], None], wanted: Callable[[], bool]) -> None:
    """Place hooks in a module as soon as it is imported, if they are still wanted then."""

    def contained(imported: Any) -> None:
        # An exception here would reach the code that imports the framework.
        try:
            if wanted():  # wrapt also calls back after everything was taken off
                place(imported)
        except Exception as error:  # noqa: BLE001 - a module that is not as it was read must not end training
            not_evaluated(f"{module} could not be hooked: {error!r}")

    wrapt.when_imported(module)(contained)


def run_of_ray() -> str:
    """The name of a run, the same in all its processes: Ray's session and job.

    Raises:
        LookupError: This process has no Ray (a driver before it starts one).
    """
    import ray

    if not ray.is_initialized():
        raise LookupError("Ray is not running in this process")
    context = ray.get_runtime_context()
    return f"{context.get_session_name().removeprefix('session_')}-{context.get_job_id()}"


def introduce(run: str, process: str, versions: dict[str, str], world_size: int = 1) -> Attached:
    """The first line of this process's record."""
    return Attached(
        run=run,
        process=process,
        world_size=world_size,
        host=os.uname().nodename,
        pid=os.getpid(),
        started=time.time(),
        versions=versions,
    )


def announce(folder: Path, run: str, versions: dict[str, str]) -> None:
    """Write a record of this process that has its first line only."""
    process = f"process{os.getpid()}"
    ledger = FolderLedger(folder, run, process)
    ledger.write(introduce(run, process, versions))
    ledger.close()
