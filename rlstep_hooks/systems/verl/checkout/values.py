"""Values that the copy of verl beside a launch refuses when it builds the rollout's configuration: `if self.mode == "sync": raise`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from rlstep_hooks.systems.verl.settings import ROLLOUT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlstep_hooks.launch.checkout import Checkout
    from rlstep_hooks.launch.settings import Setting

_FILE, _CLASS = "workers/config/rollout.py", "RolloutConfig"


def refused_values(checkout: Checkout, given: Mapping[str, Setting]) -> dict[str, str]:
    """The settings of a launch that have a value which the copy refuses, each with the words in which it does.

    Only conditions on one field alone are looked at, which stand under no other.

    Args:
        checkout: The copy of verl.
        given: What the launch sets.
    """
    source = checkout.source(_FILE)
    checks = source.methods("__post_init__", of=_CLASS) if source is not None else []
    found: dict[str, str] = {}
    for field, value, words in (each for check in checks for each in _refusals(check.body)):
        setting = given.get(f"{ROLLOUT}.{field}")
        if setting is not None and not setting.unknown and setting.value == value:
            found.setdefault(f"{ROLLOUT}.{field}", words)
    return found


def _refusals(body: list[ast.stmt]) -> Iterator[tuple[str, object, str]]:
    """Each field with the value that ends the run, and the words of the error."""
    for statement in body:
        if not isinstance(statement, ast.If) or not statement.body:
            continue
        test, error = statement.test, statement.body[0]
        if not isinstance(test, ast.Compare) or [type(each) for each in test.ops] != [ast.Eq]:
            continue
        field, value = ast.unparse(test.left), test.comparators[0]
        call = error.exc if isinstance(error, ast.Raise) else None
        if not isinstance(call, ast.Call) or not isinstance(value, ast.Constant) or not field.startswith("self."):
            continue
        words = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        yield field.removeprefix("self."), value.value, ": ".join((ast.unparse(call.func), *words))
