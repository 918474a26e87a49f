"""`rlstep report --follow`: the live line of a run that another terminal, or another machine with the same disk, trains."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console

from rlstep_hooks.judge.following import INTERVAL, FollowedRun
from rlstep_hooks.judge.ranks import RECORD_WAIT
from rlstep_hooks.record.ledger import records
from rlstep_hooks.show.live import Lines, Redrawn

if TYPE_CHECKING:
    from pathlib import Path


def follow(folder: Path, name: str | None) -> None:
    """Show a run's live line until the run is over.

    That is when the record of each process has its end, or when a process without an end in its record ran on this machine and is no
    more. Whether a process of another machine still runs cannot be seen: Ctrl-C ends the following, and the report is that of
    what was recorded so far. A run that is over already is not followed at all.

    Args:
        folder: The folder of records. It may appear later.
        name: The run; the latest if left out, or the first to appear. One that the folder does not have is not waited for.
    """
    console = Console(stderr=True)
    try:
        _follow(console, folder, name)
    except OSError as error:
        console.print(f"rlstep: no longer following: {error}", style="yellow", highlight=False)
    except KeyboardInterrupt:
        console.print("rlstep: no longer following; this is what was recorded so far", style="yellow")


def _follow(console: Console, folder: Path, name: str | None) -> None:
    found = _found(console, folder)
    if name is not None and name not in found:
        return  # the report says which runs there are
    run = FollowedRun(folder, name or found[-1])
    news = run.look()
    if run.over:
        return
    head = f"rlstep: following {run.run} in {folder}; Ctrl-C ends this, not the run"
    console.print(head, style="dim", highlight=False, soft_wrap=True)
    view = Redrawn(console) if console.is_terminal else Lines(console)
    try:
        ended_at = None
        while not run.over:
            view.show(news)
            if run.complete and ended_at is None:
                ended_at = time.monotonic()
            if ended_at is not None and time.monotonic() - ended_at > RECORD_WAIT:
                return  # the others write their ends within a moment, or never
            time.sleep(INTERVAL)
            news = run.look()
    finally:
        view.close()
    time.sleep(INTERVAL)  # a process writes what it found right after its end
    if not run.complete:
        console.print("rlstep: the processes of the run are gone, without an end in their record", style="yellow")


def _found(console: Console, folder: Path) -> list[str]:
    """The runs of a folder, oldest first, once there is one."""
    found = list(records(folder))
    if not found:
        console.print(f"rlstep: waiting for a run in {folder}", style="dim", highlight=False, soft_wrap=True)
    while not found:
        time.sleep(INTERVAL)
        found = list(records(folder))
    return found
