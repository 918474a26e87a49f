"""`rlstep rules`: the catalogue of rules, the rules about something, and the page of one rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rlstep_hooks.cli.complain import complain
from rlstep_hooks.judge.rules import BY_CODE, HUNDREDS
from rlstep_hooks.judge.rules.page import EXAMPLE, page
from rlstep_hooks.show.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlstep_hooks.judge.rules import Rule
    from rlstep_hooks.judge.rules.page import Section

INDENT = 4


def show(asked: str | None) -> int:
    """Print the catalogue, the page of one rule, or the rules that speak of something.

    Args:
        asked: A rule's code, with or without its letters; or text that titles, topics or pages hold. None for the catalogue.

    Returns:
        The exit status: 2 if there is no such rule.
    """
    console = Terminal()
    if asked is None:
        console.print(_catalogue(BY_CODE.values()))
        return 0
    rule = BY_CODE.get(asked.upper()) or BY_CODE.get(f"RLS{asked}")
    found = [rule] if rule is not None else about(asked)
    if not found:
        complain(f"no rule speaks of {asked!r}; `rlstep rules` lists all rules")
        return 2
    if len(found) == 1:
        _print_page(console, found[0])
    else:
        console.print(_catalogue(found))
        console.print(f"`rlstep rules {found[0].code}` shows a rule's page", style="dim")
    return 0


def about(text: str) -> list[type[Rule]]:
    """The rules whose title or topics hold a text; where there are none, those whose pages do."""
    wanted = text.lower()
    if not wanted.strip():
        return []
    named = [rule for rule in BY_CODE.values() if wanted in f"{rule.title} {' '.join(rule.topics)}".lower()]
    return named or [rule for rule in BY_CODE.values() if wanted in (rule.__doc__ or "").lower()]


def _catalogue(rules: Iterable[type[Rule]]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("code", "severity", "title"):
        table.add_column(name, no_wrap=name != "title")
    group = ""
    for rule in rules:
        if rule.code[3] != group:
            group = rule.code[3]
            table.add_row("", "", f"[dim]{HUNDREDS[group][1]}[/dim]")
        table.add_row(rule.code, rule.severity, rule.title)
    return table


def _print_page(console: Terminal, rule: type[Rule]) -> None:
    summary, *sections = page(rule)
    console.print(Text.assemble((f"{rule.code} {rule.title}", "bold"), f" ({rule.severity})\n"))
    for block in summary.blocks:
        console.print(Text(block))
    for section in sections:
        console.print(Text(f"\n{section.heading}", style="bold"))
        _print_section(console, section)


def _print_section(console: Terminal, section: Section) -> None:
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
