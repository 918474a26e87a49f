"""`rlstep report`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console

from rlstep_hooks.ledger import records
from rlstep_hooks.render.console import plan_table, verdict_block
from rlstep_hooks.replay import NoRecordError, report_of

if TYPE_CHECKING:
    from pathlib import Path


def show(folder: Path, *, run: str | None, as_json: bool, strict: bool, trace: Path | None = None) -> int:
    """Print the report of a recorded run; the exit status.

    Args:
        folder: The folder of records.
        run: Name of the run; the latest if left out.
        as_json: Whether to print JSON.
        strict: Whether warnings fail too.
        trace: A file to write the run to as a Chrome trace.
    """
    try:
        report = report_of(folder, run)
        if trace is not None:
            from rlstep_hooks.render.trace import write_trace

            write_trace(records(folder)[report.run], report, trace)
    except (NoRecordError, OSError) as error:
        print(f"rlstep: {error}", file=sys.stderr)
        return 2
    if as_json:
        print(report.to_json())
    else:
        console = Console()
        if report.schedule is not None:
            console.print(plan_table(report.schedule), "")
        console.print(verdict_block(report))
    if report.fails(strict=strict):
        return 1
    return 2 if report.verdict == "NOT_EVALUATED" else 0
