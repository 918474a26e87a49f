"""`rlstep why` as text: symptom by symptom, what was found, what is so by design, what nobody saw, and what is excluded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rlstep_hooks.planning.words import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from rlstep_hooks.judge.symptoms import SymptomAnswer

_STYLES = {"found": "bold red", "by design": "cyan", "not observed": "yellow", "excluded": "green"}


def symptoms(answers: Sequence[SymptomAnswer], *, whole: bool) -> RenderableType:
    """Answers: of each cause the evidence, or in one line how many are excluded.

    Args:
        answers: The answers.
        whole: Whether to show the evidence of excluded causes too.
    """
    parts: list[RenderableType] = []
    for answer in answers:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1)
        shown = [cause for cause in answer.causes if whole or cause.state != "excluded"]
        for cause in shown:
            words = f"{escape(cause.words)} [dim]({escape(cause.evidence)})[/dim]"
            grid.add_row(Text(f"  {cause.state}", style=_STYLES[cause.state]), words)
        if left := len(answer.causes) - len(shown):
            others = "all others" if shown else "all of them"
            grid.add_row(Text("  excluded", style=_STYLES["excluded"]), f"{others}, {number(left, 'causes')}")
        parts += [Text(answer.words, style="bold") + Text(f"  {answer.name}", style="dim"), grid, ""]
    return Group(*parts)
