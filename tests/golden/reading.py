"""Helpers for readers' tests: read a launch, and check that every formula shown gives what the Schedule says."""

from __future__ import annotations

import ast
import math
import re
import shlex
import sys
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlstep_hooks.planning import formula as language
from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.planning.reading import Formula, Reading
from rlstep_hooks.systems.engine.launches import plan_launch, reading_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.planning.schedule import Schedule

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "min": min,
    "max": max,
    "lcm": lambda *values: math.lcm(*(int(value) for value in values)),
}
_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: Fraction(a) / b,
    ast.Mod: lambda a, b: a % b,
}


def read(launch: str | Path, **options: Any) -> Reading:
    """The reading of a command (text) or a file (path), its formulas checked."""
    words = [str(launch)] if isinstance(launch, Path) else shlex.split(launch)
    reading = reading_of(words, Options(**options))
    check_formulas(reading)
    return reading


def planned(launch: str | Path, **options: Any) -> Plan:
    """The whole plan: with findings, and with the framework's own refusal as one of them."""
    words = [str(launch)] if isinstance(launch, Path) else shlex.split(launch)
    return plan_launch(words, Options(**options))


def check_formulas(reading: Reading) -> None:
    """Evaluate every formula with the settings and compare it with the quantity that it explains."""
    for formula in reading.formulas:
        expected = quantity(reading.schedule, formula.quantity)
        if expected is None:
            continue
        declared = formula.inputs or not language.names_in(formula.text)
        value = run(formula) if declared else evaluate(formula.text, reading.schedule)
        assert value == expected, f"{formula.quantity} = {formula.text} gives {value}, the Schedule says {expected}"
        assert formula.source, f"{formula.quantity} has no source"


class Inputs(dict[str, Any]):
    """The values that went into a formula, as the language wants them."""

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """Those of the language, and of all systems that are loaded."""
        return _functions(len(sys.modules))

    def given(self, name: str) -> bool:
        return self[name] is not None


@lru_cache(maxsize=1)
def _functions(modules: int) -> dict[str, Callable[..., Any]]:
    """The functions of all systems that are loaded, while as many modules are."""
    systems = [
        module.SYSTEM
        for name, module in sys.modules.items()
        if name.startswith("rlstep_hooks.systems.") and hasattr(module, "SYSTEM")
    ]
    return language.FUNCTIONS | {name: each for system in systems for name, each in system.functions.items()}


def run(formula: Formula) -> Any:
    """What a declaration's formula gives from the numbers that are shown with it."""
    return language.evaluate(formula.text, Inputs(formula.inputs))


def quantity(schedule: Schedule, name: str) -> Any:
    """A field of a Schedule, or of its critic."""
    if name.startswith("critic."):
        assert schedule.critic is not None
        return getattr(schedule.critic, name.removeprefix("critic."))
    return getattr(schedule, name)


def evaluate(text: str, schedule: Schedule) -> Any:
    """The value of a formula's text."""
    names: dict[str, str] = {}

    def placeholder(match: re.Match[str]) -> str:
        return names.setdefault(match.group(0), f"v{len(names)}_")

    tree = ast.parse(re.sub(r"[A-Za-z_][\w.]*", placeholder, text), mode="eval")
    meaning = {short: name for name, short in names.items()}

    def value(node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            name = meaning[node.id]
            known = schedule.settings[name] if name in schedule.settings else quantity(schedule, name)
            return Fraction(str(known)) if isinstance(known, str | float) else known
        if isinstance(node, ast.BinOp):
            return _OPERATIONS[type(node.op)](value(node.left), value(node.right))
        assert isinstance(node, ast.Call)
        assert isinstance(node.func, ast.Name)
        return _FUNCTIONS[meaning[node.func.id]](*(value(argument) for argument in node.args))

    return value(tree.body)


__all__ = ["Formula", "check_formulas", "evaluate", "planned", "read"]
