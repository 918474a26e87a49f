"""`rlstep rules`."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rlstep_hooks.judge.rules import RULES, Rule, page
from rlstep_hooks.judge.rules.plan_checks import PLAN_RULES, PlanRule

GROUPS = {
    "1": "plan and configuration",
    "2": "counts and order",
    "3": "old log-probs and ratio",
    "4": "weights and sync",
    "5": "data",
    "6": "learning rate",
    "7": "resume",
    "8": "loss, gradient and optimizer",
    "9": "observation itself",
}


def show(code: str | None) -> int:
    """Print the catalogue or one page. Returns the exit status."""
    console = Console()
    rules: list[type[Rule] | type[PlanRule]] = sorted((*RULES, *PLAN_RULES), key=lambda rule: rule.code)
    if code is None:
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for name in ("code", "severity", "title"):
            table.add_column(name, no_wrap=name != "title")
        group = ""
        for rule in rules:
            if rule.code[3] != group:
                group = rule.code[3]
                table.add_row("", "", f"[dim]{GROUPS[group]}[/dim]")
            table.add_row(rule.code, rule.severity, rule.title)
        console.print(table)
        return 0
    found = next((rule for rule in rules if rule.code == code.upper()), None)
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
