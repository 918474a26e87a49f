"""Writes the table of bugs into docs/bugs.md: `python -m tests.bugs.page`. Imports no framework."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from tests.bugs.bug import Bug, Environment, Way, bugs

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[2] / "docs" / "bugs.md"
BEGIN, END = "<!-- bugs: begin -->", "<!-- bugs: end -->"

TITLES: dict[Environment, str] = {
    "trl": "In runs of TRL, one process",
    "ranks": "In runs of TRL, several ranks",
    "classic": "In runs of Stable-Baselines3",
    "verl": "In runs of verl",
    "openrlhf": "In runs of OpenRLHF",
}


def tables() -> str:
    """Sums and tables as Markdown."""
    return "\n".join(_lines(bugs()))


def _lines(found: dict[str, Bug]) -> Iterator[str]:
    named = [bug for bug in found.values() if not bug.not_found]
    ways = ", ".join(f"{sum(bug.way == way for bug in found.values())} by {_by(way)}" for way in get_args(Way))
    yield (
        f"**{len(found)} bugs of {len({bug.repository for bug in found.values()})} repositories: {len(named)} found, "
        f"{len(found) - len(named)} not.** Made {ways}."
    )
    for environment in get_args(Environment):
        here = [bug for bug in found.values() if bug.environment == environment]
        if here:
            yield from ("", f"## {TITLES[environment]}", "")
            yield "| bug | releases | what was wrong | what a user saw | found by | made by |"
            yield "|---|---|---|---|---|---|"
            yield from map(_row, here)
    missed = [bug for bug in found.values() if bug.not_found]
    if missed:
        yield from ("", "## Not found", "", "| bug | what was wrong | why nothing finds it |", "|---|---|---|")
        yield from (f"| [{bug.report}]({bug.url}) | {bug.wrong} | {bug.not_found} |" for bug in missed)


def _by(way: Way) -> str:
    return {
        "published releases": "training the published releases",
        "mend undone": "taking the mend back in a newer release",
        "same mistake": "making the same mistake in another framework or release",
    }[way]


def _row(bug: Bug) -> str:
    releases = f"{bug.before}; mended in {bug.after}" if bug.after else bug.before
    place = "" if bug.event.rollout is bug.event.update is bug.event.microbatch is None else f", {bug.event}"
    words = f": “{bug.cause}”" if bug.cause else ""
    severity = " (a warning)" if bug.doubtful else ""
    found = "not found" if bug.not_found else f"[{bug.rule}](rules/{bug.rule}.md){severity}{place}{words}"
    return (
        f"| [{bug.report}]({bug.url}) | {releases} | {bug.wrong} | {bug.seen} | {found} | {bug.way}, {_releases(bug)} |"
    )


def _releases(bug: Bug) -> str:
    return f"{bug.made_in} and {bug.silent_in.split()[-1]}" if bug.silent_in else bug.made_in


def page_with_tables(text: str) -> str:
    """A page with the tables between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(PAGE.read_text()))
    sys.exit(0)
