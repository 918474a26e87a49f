"""Two plans, two runs, or a run and a plan, side by side in a terminal."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rlstep_hooks.planning.words import number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from rlstep_hooks.judge.run_diff.actions import Action
    from rlstep_hooks.judge.run_diff.recorded import RecordedRun
    from rlstep_hooks.judge.run_diff.run_and_plan import PlanDifference
    from rlstep_hooks.judge.run_diff.two_runs import RunDifference
    from rlstep_hooks.planning.comparison import QuantityDifference, Side
    from rlstep_hooks.planning.finding import Finding


_COUNTS = {"microbatches": "micro-batches", "old_logprob_refreshes": "old log-prob refreshes"}


def quantities(differences: Iterable[QuantityDifference], a: str, b: str) -> RenderableType:
    """Quantities that differ, each with the settings that cause it below it."""
    table = _table("", a, b)
    for difference in differences:
        table.add_row(difference.quantity, shown(difference.a.value), shown(difference.b.value))
        for name in difference.causes:
            table.add_row(*_dim(f"  {name}", *(_value(one, name) for one in (difference.a, difference.b))))
    return table


def run_head(name: str, run: RecordedRun) -> RenderableType:
    """One side of a comparison: which run it is, and its own verdict."""
    schedule = run.report.schedule
    made = f" · {schedule.framework} {schedule.version}" if schedule is not None else ""
    text = f"{name}  {run.name} in {run.place}{made} · {run.report.verdict.replace('_', ' ')}"
    return Text(text if run.report.complete else f"{text} (not at its end)")


def two_runs(a: RecordedRun, b: RecordedRun, difference: RunDifference) -> RenderableType:
    """Where two runs part, their counts, and what else differs."""
    parts: list[RenderableType] = [run_head("A", a), run_head("B", b), Text()]
    parts += [*_parting(difference), Text()]
    counts = _table("", "A", "B")
    for name, (one, other) in difference.counts.items():
        style = "" if one == other else "bold"
        counts.add_row(Text(_COUNTS.get(name, name.replace("_", " ")), style=style), number(one), number(other))
    for lag, values in difference.max_log_ratio.items():
        counts.add_row(f"max |log ratio| at lag {lag}", *("-" if value is None else f"{value:.2g}" for value in values))
    parts += [counts, Text()]
    if difference.quantities:
        parts += [Text("the plans differ", style="bold"), quantities(difference.quantities, "A", "B"), Text()]
    for title, pairs in (("settings that differ", difference.settings), ("other releases", difference.versions)):
        if pairs:
            table = _table(title, "A", "B")
            for name, (mine, theirs) in pairs.items():
                table.add_row(name, shown(mine), shown(theirs))
            parts += [table, Text()]
    for found in difference.numbers:
        text = f"for information: {found.name} {found.a:.3g} in A, {found.b:.3g} in B, first at {found.where}"
        parts.append(Text(text, style="cyan"))
    return Group(*parts, *_notes(difference.notes))


def _parting(difference: RunDifference) -> list[RenderableType]:
    parting = difference.parting
    if parting is None:
        words = "it cannot be told whether they part" if difference.outcome == "unknown" else "they do not part"
        return [Text(f"{words}: {number(difference.compared, 'equal events')}", style="bold")]
    head = f"they part at {parting.where}, after {number(parting.after, 'equal events')}"
    table = Table.grid(padding=(0, 2))
    for name, actions in (("A", parting.a), ("B", parting.b)):
        first, *rest = (escape(words) for words in _actions(actions))
        table.add_row(f"  {name}", f"[bold]{first}[/bold]")
        for words in rest:
            table.add_row("", f"[dim]then {words}[/dim]")
    return [Text(head, style="bold red"), table]


def _actions(actions: Sequence[Action]) -> list[str]:
    return [action_words(action) for action in actions]


def action_words(action: Action) -> str:
    """An action with what is known of it: "a micro-batch: samples 4, lag 1"."""
    facts = ", ".join(f"{name} {shown(value)}" for name, value in action.facts.items() if value is not None)
    return f"{action.kind}: {facts}" if facts else action.kind


def run_and_plan(run: RecordedRun, name: str, other: str, difference: PlanDifference) -> RenderableType:
    """How a run departs from the plan of a launch.

    Args:
        run: The run.
        name: Which side it is, "A" or "B".
        other: The other side in words.
        difference: What was found.
    """
    parts: list[RenderableType] = [run_head(name, run), Text(other), Text()]
    if difference.outcome == "same":
        parts += [Text("the run is one of this plan", style="bold"), Text()]
    if difference.departure is not None:
        parts += [*_departure(difference.departure), Text()]
    counts = _table("", "planned by the launch", "observed in the run")
    for row in difference.counts:
        counts.add_row(row.name, number(row.planned), number(row.observed))
    parts += [counts, Text()]
    if difference.quantities:
        heads = ("run", "launch")
        parts += [Text("the plans differ", style="bold"), quantities(difference.quantities, *heads), Text()]
    return Group(*parts, *_notes(difference.notes))


def _departure(finding: Finding) -> list[RenderableType]:
    """What was planned and what came. The causes that a finding names are left out: they hold for a run with this plan."""
    table = Table.grid(padding=(0, 2))
    table.add_row("  plan", escape(finding.expected))
    table.add_row("  run", f"{escape(finding.observed)} [dim]({finding.code} {escape(finding.title)})[/dim]")
    return [Text(f"the run leaves this plan at {finding.where}", style="bold red"), table]


def _notes(notes: Iterable[str]) -> list[RenderableType]:
    return [Text(note, style="yellow") for note in notes]


def _table(*heads: str) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column(heads[0], no_wrap=True)
    for head in heads[1:]:
        table.add_column(head, justify="right")
    return table


def _dim(*texts: str) -> list[Text]:
    return [Text(text, style="dim") for text in texts]


def _value(one: Side, name: str) -> str:
    return shown(one.settings[name]) if name in one.settings else ""


def shown(value: Any) -> str:
    """A value of a Schedule or a setting, short."""
    if value is None:
        return "-"
    if isinstance(value, Fraction):
        # 1/3 is easy to read as a fraction; 10/9 is easier as 1.111.
        return str(value) if value.denominator == 1 or (value < 1 and value.denominator < 10) else f"{float(value):.4g}"
    if isinstance(value, tuple | list):
        if len(value) > 1 and len(set(value)) == 1:
            return f"{len(value)} x {value[0]}"
        text = " ".join(str(part) for part in value[:12])
        return f"{text} … ({len(value)})" if len(value) > 12 else text
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, int) else str(value)
