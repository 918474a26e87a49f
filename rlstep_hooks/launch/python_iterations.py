"""The turns of a loop over what a Python file writes out: `for key, value in settings.items()`. Parsed, never executed."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from rlstep_hooks.launch.python_source import NotLiteralError
from rlstep_hooks.launch.python_substitution import expression_of

if TYPE_CHECKING:
    from rlstep_hooks.launch.python_values import Values

_MOST = 500
"""Turns that are read of one loop."""


def iterations(iterable: ast.expr, target: ast.expr, values: Values) -> list[dict[str, ast.expr]] | None:
    """What each turn of a loop binds its names to; None where the file does not say it.

    Args:
        iterable: What the loop goes through.
        target: The names that it binds.
        values: Works out the expressions of the file.
    """
    parts = _parts(iterable, values)
    names = [target] if isinstance(target, ast.Name) else target.elts if isinstance(target, ast.Tuple) else []
    if parts is None or len(parts) > _MOST or not names:
        return None
    found: list[dict[str, ast.expr]] = []
    for part in parts:
        single = part if isinstance(target, ast.Tuple) else ast.Tuple([part], ast.Load())
        if not isinstance(single, ast.Tuple | ast.List) or len(single.elts) != len(names):
            return None
        pairs = list(zip(names, single.elts, strict=True))
        if any(isinstance(value, ast.Starred) or not isinstance(name, ast.Name) for name, value in pairs):
            return None
        found.append({name.id: _plain(value, values) for name, value in pairs if isinstance(name, ast.Name)})
    return found


def _parts(iterable: ast.expr, values: Values) -> list[ast.expr] | None:
    """The expressions that a loop goes through."""
    match iterable:
        case ast.Call(func=ast.Attribute(value=of, attr="items"), args=[], keywords=[]):
            pairs = _pairs(of, values)
            return [ast.Tuple(list(pair), ast.Load()) for pair in pairs] if pairs is not None else None
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return None if any(isinstance(each, ast.Starred) for each in parts) else parts
    try:
        whole = values.literal(iterable)
    except NotLiteralError:
        return None
    if not isinstance(whole, list | dict):
        return None
    return [expression_of(each) for each in whole]


def _pairs(of: ast.expr, values: Values) -> list[tuple[ast.expr, ast.expr]] | None:
    """The pairs of a mapping; None where they are not all known."""
    pairs = values.pairs(of)
    if pairs is None or pairs.hidden or pairs.unsure or pairs.filtered:
        return None
    return [(ast.Constant(key), value) for key, value in pairs.values.items()]


def _plain(node: ast.expr, values: Values) -> ast.expr:
    """The value of an expression, where the file says it; else the expression."""
    try:
        return expression_of(values.literal(node))
    except NotLiteralError:
        return node
