"""Expressions of a Python file with values in the place of names."""

from __future__ import annotations

import ast
import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def substituted(node: ast.expr, given: Mapping[str, ast.expr]) -> ast.expr:
    """An expression with values in the place of names. Parts without them stay the nodes of the file, which know where they stand."""
    return _substituted(node, given) if given else node  # type: ignore[return-value]


def _substituted(node: ast.AST, given: Mapping[str, ast.expr]) -> ast.AST:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in given:
        return given[node.id]
    changed: dict[str, object] = {}
    for field, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            new: object = _substituted(value, given)
            is_same = new is value
        elif isinstance(value, list):
            new = [_substituted(each, given) if isinstance(each, ast.AST) else each for each in value]
            is_same = all(one is other for one, other in zip(new, value, strict=True))
        else:
            continue
        if not is_same:
            changed[field] = new
    if not changed:
        return node
    made = copy.copy(node)
    for field, new in changed.items():
        setattr(made, field, new)
    return made


def expression_of(value: object) -> ast.expr:
    """The expression of a plain value."""
    return ast.parse(repr(value), mode="eval").body
