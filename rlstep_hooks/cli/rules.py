"""`rlstep rules`."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

from rlstep_hooks.rules import BY_CODE, RULES, page

GROUPS = {
    "1": "plan and configuration",
    "2": "counts and order",
    "3": "old log-probs and ratio",
    "4": "weights and sync",
    "5": "data",
    "6": "learning rate",
    "7": "resume",
    "8": "loss scale",
    "9": "observation itself",
}


def show(code: str | None) -> int:
    """Print the catalogue or one page; the exit status."""
    console = Console()
    if code is None:
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for name in ("code", "severity", "title"):
            table.add_column(name, no_wrap=name != "title")
        group = ""
        for rule in RULES:
            if rule.code[3] != group:
                group = rule.code[3]
                table.add_row("", "", f"[dim]{GROUPS[group]}[/dim]")
            table.add_row(rule.code, rule.severity, rule.title)
        console.print(table)
        return 0
    if code.upper() not in BY_CODE:
        print(f"rlstep: there is no rule {code}; `rlstep rules` lists them", file=sys.stderr)
        return 2
    rule = BY_CODE[code.upper()]
    console.print(f"[bold]{rule.code} {rule.title}[/bold] ({rule.severity})\n")
    console.print(page(rule), highlight=False, markup=False)
    return 0
