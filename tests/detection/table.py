"""Prints what the fault tests noted: `python -m tests.detection.table FILE`."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rlstep_hooks.judge.links import link_of
from tests.detection.outcomes import Clean, Detected, read

OF_THE_WHOLE_RUN = {
    "RLS505": "one good sample anywhere would clear it",
    "RLS603": "a rate that comes back would clear it",
    "RLS901": "a process may still begin to record",
}
"""Rules that can only speak at the end of a run, and why."""


def show(outcomes: list[Detected | Clean]) -> bool:
    """Print the table and the sums; whether every fault was found, and no clean run has an alarm."""
    detected = sorted(
        (outcome for outcome in outcomes if isinstance(outcome, Detected)),
        key=lambda outcome: (outcome.code, outcome.report, outcome.framework),
    )
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for name in ("link", "report", "framework", "fault", "found by"):
        table.add_column(name, no_wrap=name != "fault")
    table.add_column("events after", justify="right")
    table.add_column("rollouts after", justify="right")
    for one in detected:
        table.add_row(link_of(one.code).name, one.report, one.framework, _words(one.fault), *_found(one))
    console = Console(width=150)
    console.print(table)
    clean = [outcome for outcome in outcomes if isinstance(outcome, Clean)]
    found = [one for one in detected if one.found]
    soon = [one for one in found if one.delay is not None and one.delay.rollouts <= 1]
    at_end = [one for one in found if one not in soon and one.code in OF_THE_WHOLE_RUN]
    later = [
        f"{one.framework}: {_words(one.fault)} ({one.code})" for one in found if one not in soon and one not in at_end
    ]
    alarmed = [outcome for outcome in clean if outcome.alarms]
    early = [one for one in detected if one.early]
    links = Counter(link_of(one.code).name for one in detected)
    named = ", ".join(f"{link} {number}" for link, number in links.most_common())
    console.print(
        f"\n{len(detected)} faults in real runs: {len(found)} found, {len(soon)} of them within one rollout, "
        f"{len(at_end)} at the end of the run, which their rules are about; {len(early)} with an alarm before the fault.",
        f"{len(clean)} clean runs: {len(alarmed)} with an alarm.",
        f"by link: {named}",
        f"later than one rollout, or at a place that the fault's own rollout does not give: {'; '.join(later) or 'none'}",
        sep="\n",
        highlight=False,
    )
    return len(found) == len(detected) and not alarmed and not early


def _words(name: str) -> str:
    """A function's or a class's name in words."""
    return re.sub("(?<=[a-z])(?=[A-Z])", " ", name).replace("_", " ").lower()


def _found(one: Detected) -> tuple[str, str, str]:
    if not one.found:
        return "NOT FOUND", "", ""
    if one.delay is None or one.code in OF_THE_WHOLE_RUN:
        return one.code, "at the end", "at the end"
    return one.code, str(one.delay.events), str(one.delay.rollouts)


def main() -> None:
    """Print the table of a file; exit status 1 if a fault was missed or a clean run has an alarm."""
    sys.exit(0 if show(read(Path(sys.argv[1]))) else 1)


if __name__ == "__main__":
    main()
