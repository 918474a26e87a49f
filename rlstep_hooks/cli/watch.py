"""Follows the runs of a command from outside, while it runs, and says what happens in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from rlstep_hooks.judge.following import FollowedRun
from rlstep_hooks.record.ledger import record_files
from rlstep_hooks.show.console import plan_table, rows_table
from rlstep_hooks.show.live import Lines
from rlstep_hooks.show.plan import plan_rows

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.cli.ahead import Ahead
    from rlstep_hooks.judge.following import News
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.events import RunStarted


class Watch:
    """Prints a line for each rollout of every run that a folder gets.

    Args:
        folder: The folder of records; it may not be there yet.
        before: Runs that are of no interest.
        shown: The plan that was printed already.
    """

    def __init__(self, folder: Path, before: set[str], shown: Schedule | None) -> None:
        self._folder = folder
        self._before = before
        self._runs: dict[str, FollowedRun] = {}
        self._lines = Lines(Console(stderr=True))
        self._shown = plan_rows(shown) if shown is not None else []

    def print_late(self, ahead: Ahead) -> None:
        """Print the plan that was not there when the command started, unless the run itself has told it by now."""
        if not self._shown:
            self._shown = plan_rows(ahead.schedule) if ahead.schedule is not None else []
            self._lines.say(ahead.text)

    def look(self) -> None:
        """Look at all runs once."""
        for name in record_files(self._folder):
            if name not in self._before and name not in self._runs:
                self._runs[name] = FollowedRun(self._folder, name)
        for run in self._runs.values():
            if not run.complete:
                self._tell(run.look())

    def _tell(self, news: News) -> None:
        if news.started is not None:
            self._tell_plan(news.started)
        for unknown in news.unobserved:
            self._lines.say(f"rlstep: not evaluated ({unknown.what}): {unknown.why}", style="yellow")
        self._lines.show(news)

    def _tell_plan(self, started: RunStarted) -> None:
        """The live configuration decides: of its plan, what was not read from the command is printed."""
        if started.schedule is None:
            return
        rows = plan_rows(started.schedule)
        news = [row for row in rows if row not in self._shown]
        if not self._shown:
            self._lines.display(plan_table(started.schedule))
        elif news:
            self._lines.display(rows_table(news, "the live configuration, where it is not what the command said"))
        self._shown = rows
