"""`rlstep report --follow`: the live line of a run in another terminal, or on another machine that shares the disk."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rlstep_hooks.cli.stalled import StallWatch
from rlstep_hooks.judge.following import INTERVAL, FollowedRun
from rlstep_hooks.judge.ranks.merge import RECORD_WAIT
from rlstep_hooks.judge.replay import latest_run
from rlstep_hooks.record.ledger import records
from rlstep_hooks.show.live import Lines, Redrawn
from rlstep_hooks.show.terminal import Terminal
from rlstep_hooks.systems.engine import index

if TYPE_CHECKING:
    from pathlib import Path


def follow(folder: Path, name: str | None) -> None:
    """Show a run's live line until the run is over.

    It is over when the record of each process has its end, or when a process without an end ran on this machine and no longer runs. A
    process on another machine cannot be checked; Ctrl-C then stops following, and the report covers what was recorded so far. A run
    that is already over is not followed.

    Args:
        folder: The folder of records; it may appear later.
        name: The run; None for the latest, or the first to appear. A named run that is not there is not waited for.
    """
    console = Terminal(stderr=True)
    try:
        _follow(console, folder, name)
    except OSError as error:
        console.print(f"rlstep: no longer following: {error}", style="yellow", highlight=False, markup=False)
    except KeyboardInterrupt:
        console.print("rlstep: no longer following; this is what was recorded so far", style="yellow")


def _follow(console: Terminal, folder: Path, name: str | None) -> None:
    found = _found(console, folder)
    if name is not None and name not in found:
        return  # the report lists the runs
    runs = records(folder)
    followed = name or latest_run(runs)
    run = FollowedRun(runs[followed][0].path.parent, followed, deviations_of=index.deviations_of)
    news = run.look()
    if run.over:
        return
    head = f"rlstep: following {run.run} in {folder}; Ctrl-C ends this, not the run"
    console.print(head, style="dim", highlight=False, soft_wrap=True, markup=False)
    stalled = StallWatch(run.folder, followed)
    view = Redrawn(console) if console.is_terminal else Lines(console)
    try:
        ended_at = None
        while not run.over:
            view.show(news)
            if run.complete and ended_at is None:
                ended_at = time.monotonic()
            if ended_at is not None and time.monotonic() - ended_at > RECORD_WAIT:
                return  # the other processes write their ends soon, or never
            time.sleep(INTERVAL)
            news = run.look()
            for line in stalled.look():
                console.print(f"rlstep: {line}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    finally:
        view.close()
    time.sleep(INTERVAL)  # a process writes its judgement right after its end
    if not run.complete:
        console.print("rlstep: the run's processes stopped without recording an end", style="yellow")


def _found(console: Terminal, folder: Path) -> list[str]:
    """The runs of a folder, oldest first; waits until there is one."""
    found = list(records(folder))
    if not found:
        console.print(
            f"rlstep: waiting for a run in {folder}", style="dim", highlight=False, soft_wrap=True, markup=False
        )
    while not found:
        time.sleep(INTERVAL)
        found = list(records(folder))
    return found
