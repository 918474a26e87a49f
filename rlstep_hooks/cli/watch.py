"""Follows a command's runs from outside while it runs, and prints what happens in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.cli.stalled import StallWatch
from rlstep_hooks.judge.following import FollowedRun
from rlstep_hooks.record.ledger import record_files
from rlstep_hooks.show.console import plan_table, rows_table
from rlstep_hooks.show.live import Lines
from rlstep_hooks.show.plan import plan_rows
from rlstep_hooks.show.terminal import Terminal
from rlstep_hooks.systems.engine import index

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.cli.ahead import Ahead
    from rlstep_hooks.judge.following import News
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.events import RunStarted


class Watch:
    """Prints a line per rollout of every new run in a folder.

    Args:
        folder: The folder of records; it may appear later.
        before: Names of older runs, which are ignored.
        shown: The plan that has been printed.
        stalled_after: Seconds without an event after which it is told once how a run stands still; None for never.
    """

    def __init__(
        self, folder: Path, before: set[str], shown: Schedule | None, stalled_after: float | None = None
    ) -> None:
        self._stalled_after = stalled_after
        self._stalled: dict[str, StallWatch] = {}
        self._folder = folder
        self._before = before
        self._runs: dict[str, FollowedRun] = {}
        self._lines = Lines(Terminal(stderr=True))
        self._shown = plan_rows(shown) if shown is not None else []
        self._of_tests: set[str] = set()
        """Runs that a test makes: they are told in a table at the end."""

    def print_late(self, ahead: Ahead) -> None:
        """Print a plan that was not ready when the command started, unless the run itself has printed it by now."""
        if not self._shown:
            self._shown = plan_rows(ahead.schedule) if ahead.schedule is not None else []
            self._lines.say(ahead.text)

    def look(self) -> None:
        """Look at all runs once."""
        for name in record_files(self._folder):
            if name not in self._before and name not in self._runs:
                self._runs[name] = FollowedRun(self._folder, name, deviations_of=index.deviations_of)
                if self._stalled_after is not None:
                    self._stalled[name] = StallWatch(self._folder, name, self._stalled_after)
        for name, run in self._runs.items():
            if not run.complete and name not in self._of_tests:
                news = run.look()
                if news.started is not None and "test" in news.started.facts:
                    self._of_tests.add(name)
                else:
                    self._tell(news)
                    for line in self._stalled[name].look() if name in self._stalled else ():
                        self._lines.say(f"rlstep: {line}", style="yellow")

    def _tell(self, news: News) -> None:
        if news.started is not None:
            self._tell_plan(news.started)
        for unknown in news.unobserved:
            self._lines.say(f"rlstep: not evaluated ({unknown.what}): {unknown.why}", style="yellow")
        self._lines.show(news)

    def _tell_plan(self, started: RunStarted) -> None:
        """Print the live configuration's plan where it differs from the command's: the live one holds."""
        if started.schedule is None:
            return
        rows = plan_rows(started.schedule)
        news = [row for row in rows if row not in self._shown]
        if not self._shown:
            self._lines.display(plan_table(started.schedule))
        elif news:
            self._lines.display(rows_table(news, "the live configuration, where it differs from the command"))
        self._shown = rows
