"""`rlstep why` as text: symptom by symptom the conclusion, what is excluded, what was measured, and what is left to change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rlstep_hooks.planning.words import number, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from rlstep_hooks.judge.health import HealthLine
    from rlstep_hooks.judge.measures import Measures
    from rlstep_hooks.judge.symptoms import CauseAnswer, SymptomAnswer

_STYLES = {"found": "bold red", "by design": "cyan", "not observed": "yellow", "excluded": "green"}

MOST_UNSEEN = 3
"""Causes that nobody could look for, of a symptom, of which the reason is shown."""


def symptoms(answers: Sequence[SymptomAnswer], measures: Measures) -> RenderableType:
    """Answers: of each the conclusion, the faults that are excluded, and what is left; what was measured once, below the first."""
    parts: list[RenderableType] = []
    for position, answer in enumerate(answers):
        parts += [*_head(answer), _table([*_faults(answer.causes), *_right(answer)])]
        if not position:
            parts += ["", Text("  measured", style="bold"), _measured(measures)]
        parts += [*_left(answer), ""]
    return Group(*parts)


def health(lines: Sequence[HealthLine]) -> list[RenderableType]:
    """Numbers far outside of what published runs have, each with the source of its bound; nothing without any."""
    name = Text("far from published runs", style="bold magenta")
    rows = [(name, f"{escape(line.words)} [dim]({escape(line.source.name)})[/dim]") for line in lines]
    return [_table(rows)] if rows else []


def _head(answer: SymptomAnswer) -> list[RenderableType]:
    title = Text(answer.words, style="bold")
    title.append(f"  {answer.name}", style="dim not bold")
    sign = [Text(f"  shown by: {printable(answer.sign)}")] if answer.sign else []
    conclusion = Text(f"  -> {printable(answer.conclusion)}", style="bold")
    return [title, *sign, conclusion, ""]


def _faults(causes: Iterable[CauseAnswer]) -> list[tuple[Text, str]]:
    """Each fault that was found or is by design; of those that nobody could look for the first ones; how many are excluded."""
    by_state: dict[str, list[CauseAnswer]] = {}
    for cause in causes:
        by_state.setdefault(cause.state, []).append(cause)
    unseen, excluded, never = (by_state.get(state, []) for state in ("not observed", "excluded", "not in this run"))
    said = [*by_state.get("found", []), *by_state.get("by design", []), *unseen[:MOST_UNSEEN]]
    rows = [(Text(f"  {cause.state}", style=_STYLES[cause.state]), _said(cause)) for cause in said]
    if len(unseen) > MOST_UNSEEN:
        more = f"{len(unseen) - MOST_UNSEEN} more (--json has their reasons)"
        rows.append((Text("  not observed", style=_STYLES["not observed"]), more))
    if excluded:
        rules = {code for cause in excluded for code in cause.codes if code in cause.evidence}
        text = f"{number(len(excluded), 'possible faults')}: {number(len(rules), 'rules')} looked for them and passed"
        rows.append((Text("  excluded", style=_STYLES["excluded"]), text))
    if never:
        words = "; ".join(escape(cause.words) for cause in never)
        rows.append((Text("  not in this run", style="dim"), f"[dim]{words}[/dim]"))
    return rows


def _said(cause: CauseAnswer) -> str:
    return f"{escape(cause.words)} [dim]({escape(printable(cause.evidence))})[/dim]"


def _right(answer: SymptomAnswer) -> list[tuple[Text, str]]:
    names = {"  right": answer.right, "  right in part": tuple(answer.right_in_part)}
    return [(Text(name, style="green"), ", ".join(links)) for name, links in names.items() if links]


def _measured(measures: Measures) -> RenderableType:
    rows = [(Text(f"    {each.name}", style="dim"), escape(printable(each.words))) for each in measures.held]
    if measures.missing:
        rows.append((Text("    not in the record", style="dim"), ", ".join(measures.missing)))
    return _table(rows)


def _left(answer: SymptomAnswer) -> list[RenderableType]:
    if not answer.left:
        return []
    title = "  what is left, the likeliest first" if len(answer.left) > 1 else "  what is left"
    rows = []
    for place, left in enumerate(answer.left, 1):
        change = f" [bold]Change:[/bold] {escape(printable(left.change))}." if left.change else ""
        rows.append((Text(f"    {place}", style="bold"), f"{escape(printable(left.words))}.{change}"))
    return ["", Text(title, style="bold"), _table(rows)]


def _table(rows: Iterable[tuple[Text, str]]) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    for name, text in rows:
        grid.add_row(name, text)
    return grid
