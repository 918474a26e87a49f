"""What a person sees in a terminal: the plan before training, a live line, the verdict after it."""

from __future__ import annotations

import os
import shlex
import time
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rlstep_hooks.judge.causes import groups
from rlstep_hooks.judge.count_rows import count_rows
from rlstep_hooks.judge.links import links_of
from rlstep_hooks.judge.standing import Tally
from rlstep_hooks.planning.words import number, percent
from rlstep_hooks.record.events import Measured, Rollout, RunStarted, Unobserved, Update
from rlstep_hooks.record.ledger import record_files
from rlstep_hooks.record.variables import PARENT
from rlstep_hooks.show.live import EVERY, live_line
from rlstep_hooks.show.plan import headline, plan_rows
from rlstep_hooks.show.summary import ending, in_part, not_evaluated, processes, shown, verdict_words
from rlstep_hooks.show.symptoms import health
from rlstep_hooks.show.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import RenderableType

    from rlstep_hooks.judge.controlled.run import ControlledRun
    from rlstep_hooks.judge.judge import Judge
    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.planning.token_row import TokenRow
    from rlstep_hooks.record.events import AnyEvent
    from rlstep_hooks.show.plan import Row

_VERDICT_STYLE = {"PASS": "bold green", "FAIL": "bold red", "NOT_EVALUATED": "bold yellow"}
_ORIGIN_STYLE = {"prompt": "dim", "sampled": "green", "written": "blue", "other": "bold red"}
_SEVERITY_STYLE = {"error": "bold red", "warning": "yellow", "info": "cyan"}


def plan_table(schedule: Schedule) -> RenderableType:
    """The plan on one screen."""
    return rows_table(plan_rows(schedule), headline(schedule))


def rows_table(rows: Sequence[Row], head: str) -> RenderableType:
    """Rows of a plan below a headline."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_column()
    for row in rows:
        table.add_row(*map(escape, row))
    return Group(Text(head, style="bold"), Text(), table)


def finding_lines(finding: Finding, explained: Sequence[Finding] = ()) -> RenderableType:
    """One finding: what, where, expected against observed, why, what to do, and in a line each what it explains."""
    head = _finding_head(finding)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    if finding.severity != "info":
        table.add_row("  expected", escape(finding.expected))
    for name, text in (("observed", finding.observed), ("why", finding.why), ("fix", finding.fix)):
        table.add_row(f"  {name}", escape(text))
    if finding.row is not None:
        table.add_row("  row", row_lines(finding.row))
    for position, effect in enumerate(explained):
        table.add_row("  explains" if not position else "", _finding_head(effect))
    return Group(head, table)


def row_lines(row: TokenRow) -> RenderableType:
    """A row token by token: each piece in the colour of its origin, with a cross where it is wrong."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="dim")
    table.add_column()
    for piece in row.pieces:
        style = "bold red" if piece.wrong else _ORIGIN_STYLE[piece.origin]
        mark = Text("✗" if piece.wrong else " ", style=style)
        table.add_row(mark, f"{piece.words} ({piece.tokens})", Text(repr(piece.text)[1:-1], style=style))
    if row.left_out:
        table.add_row("", "", Text(f"… {number(row.left_out, 'tokens')}", style="dim"))
    return Group(Text(row.name), table)


def _finding_head(finding: Finding) -> Text:
    style = _SEVERITY_STYLE[finding.severity]
    head = Text.assemble((f"{finding.severity.upper()} {finding.code}", style), f" {finding.title} · {finding.where}")
    if finding.occurrences > 1:
        head.append(f" · {finding.repeated}", style="dim")
    return head


def verdict_block(report: Report) -> RenderableType:
    """The verdict, plan against observed, and the findings."""
    schedule = report.schedule
    far = report.health
    calm = report.verdict != "PASS" or not far
    head = Text(verdict_words(report), style=_VERDICT_STYLE[report.verdict if calm else "NOT_EVALUATED"])
    head.append(f"  {shown(report)}", style="not bold")
    ended = ending(report)
    if ended:
        head.append(f"\n{ended}", style="yellow")
    if processes(report):
        head.append(f"\n{processes(report)}", style="not bold dim")
    parts: list[RenderableType] = [head, *health(far), Text()]
    if schedule is not None:
        table = Table(box=None, padding=(0, 2), header_style="dim")
        table.add_column("")
        table.add_column("planned", justify="right")
        table.add_column("observed", justify="right")
        for row in count_rows(report):
            table.add_row(row.name, "" if row.planned is None else number(row.planned), number(row.observed))
        parts += [table, *_explained(report), Text()]
    if report.lags:
        table = Table(box=None, padding=(0, 2), header_style="dim")
        clips = any(lag.clipped is not None for lag in report.lags)
        for name in ("lag", "micro-batches", "mean |log ratio|", "max |log ratio|", *(["clipped"] if clips else [])):
            table.add_column(name, justify="right")
        for lag in report.lags:
            clipped = "" if lag.clipped is None else percent(lag.clipped)
            table.add_row(
                str(lag.lag),
                number(lag.microbatches),
                f"{lag.mean_abs_log_ratio:.2g}",
                f"{lag.max_abs_log_ratio:.2g}",
                *([clipped] if clips else []),
            )
        parts += [table, Text()]
    for finding, explained in groups(report.findings):
        parts += [finding_lines(finding, explained), Text()]
    parts += _link_lines(report)
    return Group(*parts)


def _explained(report: Report) -> list[RenderableType]:
    return [Text(f"  {report.counts_explained}", style="yellow")] if report.counts_explained else []


def _link_lines(report: Report) -> list[RenderableType]:
    """The links of a run: those that are right, those observed in part, and those not observed, with the reason."""
    unknown, links = not_evaluated(report), links_of(report.rules, report.findings)
    lines: list[tuple[str, str, str]] = []
    right = [link.name + (f" ({link.note})" if link.note else "") for link in links if link.state == "right"]
    if right:
        lines.append(("right", "green", ", ".join(right)))
    lines += [("in part", "yellow", text) for text in in_part(report)]
    lines += [("not observed", "yellow", f"{name}: {reason}") for name, reason in unknown.reasons.items()]
    if unknown.absent:
        lines.append(("not in this run", "dim", ", ".join(unknown.absent)))
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    before = ""
    for name, style, text in lines:
        table.add_row(Text("" if name == before else name, style=style), escape(text))
        before = name
    return [table] if lines else []


def record_lines(folder: Path | None, run: str = "") -> str:
    """Where a run's record is, and the command that makes its page.

    Args:
        folder: None if there is no record.
        run: The run, if the folder has several; else the latest one is meant.
    """
    if folder is None:
        return "not recorded: give log_dir=... (or RLSTEP_DIR) for `rlstep report` and its page"
    of_run = f" --run {shlex.quote(run)}" if run else ""
    return f"recorded in {folder}\nas a page: rlstep report {shlex.quote(str(folder))}{of_run} --html report.html"


class ConsoleListener:
    """Prints the plan when training begins, each topic that cannot be evaluated, and the verdict at the end. Prints nothing under
    `rlstep run`, which prints the same from the records.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Terminal(stderr=True)
        self._silent = PARENT in os.environ

    def heard(self, event: AnyEvent, judge: Judge | ControlledRun) -> None:
        """Print plan and warnings."""
        if self._silent:
            return
        if isinstance(event, RunStarted) and event.schedule is not None:
            self._console.print(plan_table(event.schedule))
        elif isinstance(event, Unobserved):
            self._console.print(Text(f"rlstep: not evaluated ({event.what}): {event.why}", style="yellow"))

    def finished(self, report: Report) -> None:
        """Print the verdict."""
        if not self._silent:
            self._console.print(verdict_block(report))

    def recorded(self, folder: Path | None, run: str) -> None:
        """Print where the record is."""
        if not self._silent:
            several = folder is not None and len(record_files(folder)) > 1
            self._console.print(
                Text(record_lines(folder, run if several else "")), style="dim", highlight=False, soft_wrap=True
            )


class LiveListener:
    """Shows where the run stands: in one line that is rewritten on a terminal, elsewhere in a plain line per rollout with at least
    `EVERY` seconds between two. Prints nothing under `rlstep run`, which has a live line of its own."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._tally = Tally()
        self._next = 0.0
        self._silent = PARENT in os.environ
        self._status = console.status("") if console.is_terminal and not self._silent else None

    def heard(self, event: AnyEvent, judge: Judge | ControlledRun) -> None:
        """Update the line."""
        if self._silent:
            return
        if isinstance(event, RunStarted) and self._status is not None:
            self._status.start()
        if self._status is None and isinstance(event, Rollout) and event.purpose == "training":
            self._print(judge)
        self._tally.hear(event)
        if self._status is not None and isinstance(event, Update | Measured):
            self._status.update(self._line(judge))

    def _print(self, judge: Judge | ControlledRun) -> None:
        """Print a line about the rollouts so far, unless the last line is too recent."""
        if self._tally.standing.rollouts and time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY
            self._console.print(self._line(judge), highlight=False, soft_wrap=True)

    def _line(self, judge: Judge | ControlledRun) -> str:
        width = self._console.width - 2 if self._status is not None else None
        return live_line(self._tally.standing, judge.verdict, width=width)

    def finished(self, report: Report) -> None:
        """Remove the line."""
        if self._status is not None:
            self._status.stop()
