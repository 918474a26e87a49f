"""`rlstep diff`: where two plans part, and which settings cause it."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from rlstep_hooks.cli.launches import side
from rlstep_hooks.comparison import QuantityDifference, Side, compare
from rlstep_hooks.launch.text import LaunchError

if TYPE_CHECKING:
    from rlstep_hooks.readers.launch_plan import Options, Plan


def show(sides: list[str], command: list[str], options: Options, *, as_json: bool = False) -> int:
    """Print the quantities in which two plans differ.

    Args:
        sides: A, and B unless a command is given; or the words of A alone.
        command: The launch command of B.
        options: What completes both.
        as_json: Whether to print JSON.

    Returns:
        0 if they are the same schedule, 1 if they differ.

    Raises:
        LaunchError: One of them cannot be read, or is refused by its framework.
    """
    first, second = _split(sides, command)
    a, b = _planned(first, options), _planned(second, options)
    differences = compare(a, b)
    if as_json:
        from rlstep_hooks.events import to_json

        print(to_json({"a": a.source, "b": b.source, "differences": differences}, indent=2).decode())
    else:
        _print(a, b, differences)
    return 1 if differences else 0


def _split(sides: list[str], command: list[str]) -> tuple[list[str], list[str]]:
    if command and len(sides) == 1:
        return sides, command
    if not command and len(sides) == 2:
        return [sides[0]], [sides[1]]
    raise LaunchError("two plans are compared: `rlstep diff A B` or `rlstep diff A -- <launch command>`")


def _planned(words: list[str], options: Options) -> Plan:
    plan = side(words, options)
    if plan.schedule is None:
        raise LaunchError(f"{plan.title} refuses {plan.source}: {plan.findings[0].observed}")
    return plan


def _print(a: Plan, b: Plan, differences: list[QuantityDifference]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not differences:
        console.print(f"the same schedule: {a.title} from {a.source}, {b.title} from {b.source}", highlight=False)
        return
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column(f"A {_head(a)}", justify="right")
    table.add_column(f"B {_head(b)}", justify="right")
    for difference in differences:
        table.add_row(difference.quantity, shown(difference.a.value), shown(difference.b.value))
        for name in difference.causes:
            values = (_value(one, name) for one in (difference.a, difference.b))
            table.add_row(Text(f"  {name}", style="dim"), *(Text(value, style="dim") for value in values))
    console.print(table)


def _head(plan: Plan) -> str:
    assert plan.schedule is not None
    return f"{plan.schedule.framework} from {plan.source}"


def _value(one: Side, name: str) -> str:
    return shown(one.settings[name]) if name in one.settings else ""


def shown(value: Any) -> str:
    """A value of a Schedule or a setting, short."""
    if value is None:
        return "-"
    if isinstance(value, Fraction):
        from rlstep_hooks.render.words import approximate

        return str(value) if value.denominator < 10 else approximate(value)
    if isinstance(value, tuple | list):
        if len(value) > 1 and len(set(value)) == 1:
            return f"{len(value)} x {value[0]}"
        text = " ".join(str(part) for part in value[:12])
        return f"{text} … ({len(value)})" if len(value) > 12 else text
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}".replace(",", " ") if isinstance(value, int) else str(value)
