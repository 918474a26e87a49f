"""`rlstep report`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console

from rlstep_hooks.render.console import plan_table, verdict_block
from rlstep_hooks.replay import NoRecordError, report_of

if TYPE_CHECKING:
    from pathlib import Path


def show(folder: Path, *, run: str | None, as_json: bool, strict: bool) -> int:
    """Print the report of a recorded run; the exit status."""
    try:
        report = report_of(folder, run)
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
