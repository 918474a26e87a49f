"""Prints what both runs of each bug said: `python -m tests.bugs.table FILE [ENVIRONMENT ...]`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tests.bugs.bug import Bug, bugs
from tests.bugs.outcomes import Outcome, read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.bugs.outcomes import Which


def show(found: Mapping[str, Bug], outcomes: Mapping[tuple[str, Which], Outcome]) -> bool:
    """Print the table and the sums; whether both runs of each were made, each bug is found that must be, and all others are silent."""
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for name in ("bug", "releases", "before", "after", "made by"):
        table.add_column(name, no_wrap=name == "bug")
    right = 0
    silent = 0
    for name, bug in found.items():
        before, after = outcomes.get((name, "before")), outcomes.get((name, "after"))
        right += before is not None and bool(before.found)
        silent += after is not None and not after.alarms
        table.add_row(
            bug.report,
            f"{bug.before} / {bug.after or '-'}",
            _before(bug, before),
            _after(after),
            f"{bug.way}, {bug.made_in}",
        )
    console = Console(width=170)
    console.print(table)
    missed = sum(bool(bug.not_found) for bug in found.values())
    console.print(
        f"\n{len(found)} bugs: {right} found before, {missed} known not to be; {silent} silent after.", highlight=False
    )
    return right == len(found) - missed and silent == len(found)


def _before(bug: Bug, outcome: Outcome | None) -> str:
    if outcome is None:
        return "NOT RUN"
    return outcome.found or ("not found, as known" if bug.not_found else "NOT FOUND")


def _after(outcome: Outcome | None) -> str:
    if outcome is None:
        return "NOT RUN"
    return "ALARM " + " ".join(outcome.alarms) if outcome.alarms else "silent"


def main() -> None:
    """Print the table of a file; exit status 1 if a bug was missed or a run without one has an alarm."""
    file, *environments = sys.argv[1:]
    found = {name: bug for name, bug in bugs().items() if not environments or bug.environment in environments}
    sys.exit(0 if show(found, read(Path(file))) else 1)


if __name__ == "__main__":
    main()
