"""The live line: where a run stands, in one line.

Two views of a run that is followed from outside. `Lines` prints plain lines among those of a command that writes to the same terminal;
`Redrawn` keeps one line up to date in a terminal of its own.
"""

from __future__ import annotations

import time
from math import exp
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from rlstep_hooks.planning.words import number

if TYPE_CHECKING:
    from fractions import Fraction

    from rich.console import Console, RenderableType

    from rlstep_hooks.judge.following import News
    from rlstep_hooks.judge.standing import Standing
    from rlstep_hooks.planning.finding import Finding, Verdict

EVERY = 5.0
"""Smallest number of seconds between two plain lines; a rollout that ends sooner gets no line."""

_VERDICTS: dict[Verdict, str] = {"PASS": "PASS so far", "FAIL": "FAIL", "NOT_EVALUATED": "NOT EVALUATED so far"}
_STYLES: dict[Verdict, str] = {"PASS": "cyan", "FAIL": "red", "NOT_EVALUATED": "yellow"}

_FINDING_STYLES = {"error": "bold red", "warning": "yellow"}

_LARGEST = 700.0
"""Nearly the largest number whose exponential fits into a float."""

_FRESH_LINE = "\r\x1b[K"
"""Moves a terminal's cursor to the start of the line and clears it. A progress bar on that line draws itself again."""


def live_line(standing: Standing, verdict: Verdict, *, width: int | None = None) -> str:
    """Rollouts, updates, lag, the range of the ratio that follows from |log ratio|, and the verdict so far.

    Args:
        standing: Where the run stands.
        verdict: The verdict so far.
        width: Columns of the terminal; if they are too few, the least important parts are left out.
    """
    schedule = standing.schedule
    rollouts = _of("rollout", standing.rollouts, schedule.rollouts if schedule is not None else None)
    updates = _of("update", standing.updates, schedule.updates if schedule is not None else None)
    lag = [] if standing.lag is None else [f"lag {standing.lag}"]
    ratio = [] if standing.max_abs_log_ratio is None else [f"ratio {_ratio_range(standing.max_abs_log_ratio)}"]
    last = "starting" if standing.starting and verdict != "FAIL" else _VERDICTS[verdict]
    lines = [
        " · ".join(parts)
        for parts in (
            [rollouts, updates, *lag, *ratio, last],
            [rollouts, updates, *ratio, last],
            [rollouts, updates, last],
            [updates, last],
        )
    ]
    return next((line for line in lines if width is None or len(line) <= width), lines[-1])


def _of(unit: str, count: int, planned: int | Fraction | None) -> str:
    return f"{unit} {number(count)} of {number(planned) if planned is not None else '?'}"


def _ratio_range(max_abs_log_ratio: float) -> str:
    """The range of the ratio, with enough digits to tell it from 1."""
    if max_abs_log_ratio == 0:
        return "1"
    low, high = exp(-max_abs_log_ratio), exp(min(max_abs_log_ratio, _LARGEST))
    if low < 0.1:
        return f"{low:.1g} to {high:.2g}"
    digits = next((d for d in (2, 3, 4, 5) if round(high, d) != 1), 6)
    return f"{low:.{digits}f} to {high:.{digits}f}"


def finding_line(finding: Finding) -> str:
    """A new error or warning in one line."""
    word = "FAIL" if finding.severity == "error" else "WARNING"
    return f"{word}: {finding.code} {finding.title} at {finding.where}"


class Lines:
    """Prints plain lines: one per rollout, with at least `EVERY` seconds between two, and each error at once.

    The ratio of a line covers all rollouts since the previous line.

    The command that runs at the same time may write anything, so each line is one write and none is rewritten.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = 0.0
        self._waiting: Standing | None = None

    def show(self, news: News) -> None:
        """Print what is new."""
        for finding in (*news.errors, *news.warnings):
            self.say(finding_line(finding), style=_FINDING_STYLES[finding.severity])
        if news.rollout_over is not None:
            self._waiting = news.rollout_over.since(self._waiting)
        if self._waiting is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY
            self.say(live_line(self._waiting, news.verdict), style=_STYLES[news.verdict])
            self._waiting = None

    def say(self, text: str, *, style: str = "") -> None:
        """Print a line."""
        self._print(Text(text, style=style), soft_wrap=True)

    def display(self, table: RenderableType) -> None:
        """Print a table or another object of rich."""
        self._print(Group(table, Text()) if self._console.is_terminal else table, soft_wrap=False)

    def _print(self, what: RenderableType, *, soft_wrap: bool) -> None:
        with self._console.capture() as written:
            self._console.print(what, soft_wrap=soft_wrap)
        # A log has no cursor, and its last line may be an unfinished progress bar.
        self._console.file.write((_FRESH_LINE if self._console.is_terminal else "\n") + written.get())
        self._console.file.flush()

    def close(self) -> None:
        """Nothing to do: no line is rewritten."""


class Redrawn:
    """Shows one line that is rewritten in place, with errors above it. For a terminal that nobody else writes to."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, news: News) -> None:
        """Bring the line up to date."""
        console = self._live.console
        line = live_line(news.now, news.verdict, width=console.width)
        # The line first, because printing draws it again: it must not say PASS below an error.
        self._live.update(Text(line, style=_STYLES[news.verdict], no_wrap=True), refresh=True)
        for finding in (*news.errors, *news.warnings):
            console.print(Text(finding_line(finding), style=_FINDING_STYLES[finding.severity]))

    def close(self) -> None:
        """Remove the line."""
        self._live.stop()
