"""`rlstep rules`: the catalogue of rules, and the page of one rule."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rlstep_hooks.judge.rules import BY_CODE, HUNDREDS
from rlstep_hooks.judge.rules.page import EXAMPLE, page

if TYPE_CHECKING:
    from rlstep_hooks.judge.rules import Rule
    from rlstep_hooks.judge.rules.page import Section

INDENT = 4


def show(code: str | None) -> int:
    """Print the catalogue, or the page of one rule.

    Returns:
        The exit status: 2 if there is no such rule.
    """
    console = Console()
    if code is None:
        console.print(_catalogue())
        return 0
    rule = BY_CODE.get(code.upper())
    if rule is None:
        print(f"rlstep: there is no rule {code}; `rlstep rules` lists all rules", file=sys.stderr)
        return 2
    _print_page(console, rule)
    return 0


def _catalogue() -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("code", "severity", "title"):
        table.add_column(name, no_wrap=name != "title")
    group = ""
    for rule in BY_CODE.values():
        if rule.code[3] != group:
            group = rule.code[3]
            table.add_row("", "", f"[dim]{HUNDREDS[group][1]}[/dim]")
        table.add_row(rule.code, rule.severity, rule.title)
    return table


def _print_page(console: Console, rule: type[Rule]) -> None:
    summary, *sections = page(rule)
    console.print(Text.assemble((f"{rule.code} {rule.title}", "bold"), f" ({rule.severity})\n"))
    for block in summary.blocks:
        console.print(Text(block))
    for section in sections:
        console.print(Text(f"\n{section.heading}", style="bold"))
        _print_section(console, section)


def _print_section(console: Console, section: Section) -> None:
    """Print an example as it stands, and paragraphs and list items as wide as the terminal."""
    if section.heading == EXAMPLE:
        console.print(Padding(Text(section.text), (0, 0, 0, INDENT)))
        return
    for block in section.blocks:
        item = block.startswith("- ")
        line = Table.grid()
        line.add_column(width=INDENT + 2 * item)
        line.add_column()
        line.add_row(f"{'- ' if item else '':>{INDENT + 2 * item}}", Text(block.removeprefix("- ")))
        console.print(line)
