"""`rlstep report`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

from rlstep_hooks.cli.complain import complain
from rlstep_hooks.judge.replay import NoRecordError, other_runs, report_of
from rlstep_hooks.judge.stillness import stillness
from rlstep_hooks.record.ledger import records
from rlstep_hooks.show.stillness import stillness_lines
from rlstep_hooks.systems.engine import index

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.record.ledger import Record
    from rlstep_hooks.show.page.timeline import TimelineWatcher

Form = Literal["text", "json", "markdown"]
"""The form of a printed report."""


def show(
    folder: Path, *, run: str | None, form: Form, strict: bool, trace: Path | None = None, html: Path | None = None
) -> int:
    """Print the report of a recorded run. Returns the exit status.

    Args:
        folder: The folder of records.
        run: Name of the run; None for the latest.
        form: The form to print.
        strict: Whether warnings fail too.
        trace: File for a Chrome trace of the run.
        html: File for the report as an HTML page.
    """
    try:
        watcher = _timeline_watcher() if html is not None else None
        report = report_of(folder, run, deviations_of=index.deviations_of, watcher=watcher)
        if trace is not None:
            _write_trace(report, records(folder)[report.run], trace)
        if html is not None and watcher is not None:
            _write_page(report, records(folder)[report.run], watcher, html)
    except (NoRecordError, OSError) as error:
        complain(error)
        return 2
    for kind, path in (("trace", trace), ("page", html)):
        if path is not None:
            complain(f"wrote the {kind} {path}")
    _print(report, form)
    if report.ending == "cut":
        standing = stillness(records(folder)[report.run], time.time())
        if standing is not None:
            complain("\n".join(stillness_lines(standing)))
    others = other_runs(folder, report.run) if run is None else ""
    if others:
        complain(others)
    return report.exit_status(strict=strict)


def _timeline_watcher() -> TimelineWatcher:
    from rlstep_hooks.show.page.timeline import TimelineWatcher

    return TimelineWatcher()


def _write_trace(report: Report, found: list[Record], path: Path) -> None:
    from rlstep_hooks.show.trace import write_trace

    write_trace(found, report, path)


def _write_page(report: Report, found: list[Record], watcher: TimelineWatcher, path: Path) -> None:
    from rlstep_hooks.show.page.build import page_of
    from rlstep_hooks.show.page.writer import write_page

    write_page(page_of(report, found, watcher, knobs=index.knobs_of(report.schedule)), path)


def _print(report: Report, form: Form) -> None:
    if form == "json":
        print(report.to_json())
        return
    if form == "markdown":
        from rlstep_hooks.show.markdown import report_markdown

        print(report_markdown(report))
        return
    from rlstep_hooks.show.console import plan_table, verdict_block
    from rlstep_hooks.show.terminal import Terminal

    console = Terminal()
    if report.schedule is not None:
        console.print(plan_table(report.schedule), "")
    console.print(verdict_block(report))
