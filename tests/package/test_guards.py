"""A hook, or a part of one, contains its own errors: no system enters a guard by itself."""

from __future__ import annotations

import ast
from pathlib import Path

import rlstep_hooks

SYSTEMS = Path(rlstep_hooks.__file__).parent / "systems"


def entered(source: str) -> list[int]:
    """The lines that enter a guard: one made there, or kept under a name that the module gives to guards."""
    tree = ast.parse(source)
    kept = {
        ast.unparse(target)
        for of in ast.walk(tree)
        if isinstance(of, ast.Assign) and isinstance(of.value, ast.Call) and ast.unparse(of.value.func) == "Guard"
        for target in of.targets
    }
    contexts = [item.context_expr for of in ast.walk(tree) if isinstance(of, ast.With) for item in of.items]
    return [of.lineno for of in contexts if ast.unparse(of) in kept or "guard" in ast.unparse(of).lower()]


def test_no_system_enters_a_guard() -> None:
    found = {
        f"{file.relative_to(SYSTEMS)}:{line}" for file in SYSTEMS.rglob("*.py") for line in entered(file.read_text())
    }
    assert found == set()


def test_guards_that_are_entered_are_found() -> None:
    source = """
class Watch:
    def __init__(self, recorder):
        self._losses = Guard(recorder, ("loss",))
        self._watch = GradientWatch(Guard(recorder, ("gradient",)))

    def look(self):
        with self._losses:
            pass
        with Guard(self.recorder, ("order",)):
            pass
        with self._seen.guard, no_grad():
            pass
        with no_grad():
            pass
"""
    assert entered(source) == [8, 10, 12]
