"""`rlstep report`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

from rlstep_hooks.judge.replay import NoRecordError, other_runs, report_of
from rlstep_hooks.record.ledger import records
from rlstep_hooks.systems import index

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.record.ledger import Record

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
        report = report_of(folder, run, deviations_of=index.deviations_of)
        if trace is not None or html is not None:
            _write(report, records(folder)[report.run], trace, html)
    except (NoRecordError, OSError) as error:
        print(f"rlstep: {error}", file=sys.stderr)
        return 2
    _print(report, form)
    others = other_runs(folder, report.run) if run is None else ""
    if others:
        print(f"rlstep: {others}", file=sys.stderr)
    return report.exit_status(strict=strict)


def _write(report: Report, found: list[Record], trace: Path | None, html: Path | None) -> None:
    if trace is not None:
        from rlstep_hooks.show.trace import write_trace

        write_trace(found, report, trace)
    if html is not None:
        from rlstep_hooks.show.page.build import page_of
        from rlstep_hooks.show.page.writer import write_page

        write_page(page_of(report, found), html)


def _print(report: Report, form: Form) -> None:
    if form == "json":
        print(report.to_json())
        return
    if form == "markdown":
        from rlstep_hooks.show.markdown import report_markdown

        print(report_markdown(report))
        return
    from rich.console import Console

    from rlstep_hooks.show.console import plan_table, verdict_block

    console = Console()
    if report.schedule is not None:
        console.print(plan_table(report.schedule), "")
    console.print(verdict_block(report))
