"""`rlstep rules`."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rlstep_hooks.judge.rules import BY_CODE, HUNDREDS, page


def show(code: str | None) -> int:
    """Print the catalogue or one page. Returns the exit status."""
    console = Console()
    if code is None:
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for name in ("code", "severity", "title"):
            table.add_column(name, no_wrap=name != "title")
        group = ""
        for rule in BY_CODE.values():
            if rule.code[3] != group:
                group = rule.code[3]
                table.add_row("", "", f"[dim]{HUNDREDS[group][1]}[/dim]")
            table.add_row(rule.code, rule.severity, rule.title)
        console.print(table)
        return 0
    found = BY_CODE.get(code.upper())
    if found is None:
        print(f"rlstep: there is no rule {code}; `rlstep rules` lists them", file=sys.stderr)
        return 2
    console.print(f"[bold]{found.code} {found.title}[/bold] ({found.severity})\n")
    for indent, paragraph in _paragraphs(page(found)):
        console.print(Padding(Text(paragraph), (0, 0, 0, indent)))
    return 0


def _paragraphs(text: str) -> list[tuple[int, str]]:
    """A docstring's paragraphs with their indentation, each as one line; the terminal wraps them."""
    found: list[tuple[int, str]] = []
    continues = False
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if continues and line.strip() and found[-1][0] == indent:
            found[-1] = (indent, f"{found[-1][1]} {line.strip()}")
        else:
            found.append((indent, line.strip()))
        continues = bool(line.strip())
    return found
