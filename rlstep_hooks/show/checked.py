"""Many launch files as a table: in a terminal, and as the Markdown of a comment on a pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rlstep_hooks.planning.words import number
from rlstep_hooks.show.difference import shown
from rlstep_hooks.show.markdown import escaped, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from rlstep_hooks.planning.checked import Checked

HEAD = ("file", "framework", "rollout", "update", "updates/rollout", "findings")


def text(checked: Sequence[Checked], width: int) -> RenderableType:
    """A row for each file, with what differs and the findings below them all.

    Args:
        checked: The files.
        width: Columns of the terminal. Where the longest row does not fit, each file's numbers stand below its name.
    """
    rows = [_cells(one) for one in checked]
    widths = [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]
    parts: list[RenderableType] = []
    if sum(widths) + 2 * len(widths) <= width:
        grid = Table(*HEAD, box=None, padding=(0, 1), header_style="dim")
        for row in rows:
            grid.add_row(*map(Text, row))
        parts.append(grid)
    else:
        for path, system, *numbers in rows:
            named = [f"{title}: {cell}" for title, cell in zip(HEAD[2:], numbers, strict=True) if cell]
            parts += [Text(path), Padding(Text(" · ".join([system, *named])), (0, 0, 0, 2))]
    for one in checked:
        lines = [*_reason(one), *_changes(one), *_findings(one)]
        if lines:
            parts += [Text(f"\n{one.path}", style="bold"), *(Padding(escape(line), (0, 0, 0, 2)) for line in lines)]
    return Group(*parts)


def markdown(checked: Sequence[Checked]) -> str:
    """The table of checked launches as GitHub-flavoured Markdown."""
    if not checked:
        return "No launch file is changed."
    lines = table(HEAD, [[escaped(cell) for cell in _cells(one)] for one in checked])
    for one in checked:
        said = [*_reason(one), *_changes(one), *_findings(one)]
        if said:
            lines += ["", f"**{escaped(one.path)}**", "", *(f"- {escaped(line)}" for line in said)]
    return "\n".join(lines)


def _cells(one: Checked) -> list[str]:
    if one.plan is None:
        return [one.path, "not planned", "", "", "", "see below"]
    schedule, codes = (
        one.plan.shown,
        [placed.finding.code for placed in one.findings if placed.finding.severity != "info"],
    )
    release = f"{one.plan.title} {one.plan.version}".rstrip()
    found = ", ".join(dict.fromkeys(codes)) or "none"
    if schedule is None:
        return [one.path, release, "", "", "", found]
    update = "" if schedule.samples_per_update is None else number(schedule.samples_per_update, "samples")
    return [
        one.path,
        release,
        number(schedule.samples_per_rollout, "samples"),
        update,
        shown(schedule.updates_per_rollout),
        found,
    ]


def _reason(one: Checked) -> list[str]:
    return [f"not planned: {one.reason}"] if one.reason else []


def _changes(one: Checked) -> list[str]:
    found = [f"before: {one.was}"] if one.was and one.was != one.now else []
    for each in one.differences:
        causes = f" ({', '.join(each.causes)})" if each.causes else ""
        found.append(f"{each.quantity}: {shown(each.a.value)} -> {shown(each.b.value)}{causes}")
    return found


def _findings(one: Checked) -> list[str]:
    return [
        f"{placed.finding.severity.upper()} {placed.finding.code} {placed.finding.title} ({placed.place}): "
        f"{placed.finding.observed}. Fix: {placed.finding.fix}"
        for placed in one.findings
        if placed.finding.severity != "info"
    ]
