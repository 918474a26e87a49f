"""A formula as it ran: steps are written out, only the alternative that was taken is shown, and the values that went in are added."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from rlstep_hooks.planning.formula import NotKnownError, Unknown, dotted, names_of, parsed, value_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.planning.formula import Values


def shown(text: str, values: Values, steps: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """An expression as it ran, and the values of its names.

    Args:
        text: The expression.
        values: What gives the names of the expression their values.
        steps: Names to be replaced by their expressions.
    """
    node = parsed(text)
    ran = _ran(node, values, steps)
    inputs = {}
    for name in sorted(names_of(ran)):
        try:
            inputs[name] = values[name]
        except NotKnownError:
            inputs[name] = None
    return text if ran is node else ast.unparse(ran), inputs


def _ran(node: ast.expr, values: Values, steps: Mapping[str, str]) -> ast.expr:
    """The part of an expression that ran; the same object if all of it ran."""
    if name := dotted(node):
        if name not in steps:
            return node
        return _ran(parsed(steps[name]), values, {step: text for step, text in steps.items() if step != name})
    if isinstance(node, ast.IfExp) and (taken := _taken(node, values)) is not None:
        return _ran(taken, values, steps)
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
        return _ran(next((each for each in node.values[:-1] if value_of(each, values)), node.values[-1]), values, steps)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "limited":
        value, limit = node.args
        if value_of(limit, values) is None:
            return _ran(value, values, steps)
        if isinstance(value_of(value, values), Unknown):
            return _ran(limit, values, steps)
        node = ast.Call(ast.Name("min", ast.Load()), node.args, [])
    return _with_parts(node, values, steps)


def _taken(node: ast.IfExp, values: Values) -> ast.expr | None:
    """The alternative that was taken; None if that is not known, or if the formula only chooses between words."""
    chosen = value_of(node.test, values)
    branch = node.body if chosen else node.orelse
    words = isinstance(branch, ast.Constant) and isinstance(branch.value, str)
    return None if isinstance(chosen, Unknown) or words else branch


def _with_parts(node: ast.expr, values: Values, steps: Mapping[str, str]) -> ast.expr:
    """The expression with the parts of its operands and arguments that ran."""
    changed: dict[str, Any] = {}
    for field, part in ast.iter_fields(node):
        if isinstance(part, ast.expr) and not (field == "func" and isinstance(node, ast.Call)):
            ran: Any = _ran(part, values, steps)
            if ran is not part:
                changed[field] = ran
        elif isinstance(part, list):
            ran = [_ran(each, values, steps) if isinstance(each, ast.expr) else each for each in part]
            if any(new is not old for new, old in zip(ran, part, strict=True)):
                changed[field] = ran
    return type(node)(**{**dict(ast.iter_fields(node)), **changed}) if changed else node
