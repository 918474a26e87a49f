"""Members of what a function gives back to one call of it, with what the call hands in: `get_config("small").batch`."""

from __future__ import annotations

import ast
import copy
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def call_in(node: ast.expr) -> ast.Call | None:
    """The call of a function, of a class or of a module's function by its name that an expression takes members of."""
    match base := _base(node):
        case ast.Call(func=ast.Name() | ast.Attribute(value=ast.Name())):
            return base
    return None


def name_in(node: ast.expr) -> ast.Name | None:
    """The name that an expression takes members of; None where it takes none."""
    base = _base(node)
    return base if isinstance(base, ast.Name) and base is not node else None


def returned(function: ast.FunctionDef) -> ast.expr | None:
    """What a function gives back that does nothing but to look at what it is given; None for any other."""
    last = function.body[-1]
    is_one = isinstance(last, ast.Return) and _only_returns(function)
    return last.value if isinstance(last, ast.Return) and is_one else None


def result(node: ast.expr, value: ast.expr, given: Mapping[str, object]) -> ast.expr:
    """An expression with what its function gives back in the place of the call.

    Args:
        node: Members of a call.
        value: What the function that it calls gives back to it.
        given: What its parameters are in this call.
    """
    back = _Given(given).visit(copy.deepcopy(value))
    whole: ast.expr = _Called(back).visit(copy.deepcopy(node))
    for inner in ast.walk(whole):
        # What the top of a file changes has happened before anything calls its functions.
        if isinstance(inner, ast.expr):
            inner.lineno, inner.col_offset = sys.maxsize, 0
    return whole


def in_place(node: ast.expr, value: ast.expr) -> ast.expr:
    """Members of a call, or of a name, as members of what that stands for, whose parts stay where they stand in the file."""
    if not isinstance(node, ast.Attribute | ast.Subscript):
        return value
    made = copy.copy(node)
    made.value = in_place(made.value, value)
    return made


def parameters(function: ast.FunctionDef, call: ast.Call, *, bound: int = 0) -> dict[str, ast.expr] | None:
    """What a call hands to each parameter that it gives, and the defaults of the others; None where that cannot be told."""
    own = function.args
    placed = [each.arg for each in (*own.posonlyargs, *own.args)]
    found = dict(zip(placed[len(placed) - len(own.defaults) :], own.defaults, strict=True))
    found |= {each.arg: value for each, value in zip(own.kwonlyargs, own.kw_defaults, strict=True) if value is not None}
    given = handed(function, call, bound=bound)
    return {**found, **given} if given is not None else None


def handed(
    function: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call, *, bound: int = 0
) -> dict[str, ast.expr] | None:
    """What a call hands to the parameters that it gives; None where that cannot be told."""
    own = function.args
    if own.vararg or own.kwarg or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    if any(word.arg is None for word in call.keywords):
        return None
    placed = [each.arg for each in (*own.posonlyargs, *own.args)]
    return {
        **dict(zip(placed[bound:], call.args, strict=False)),
        **{word.arg: word.value for word in call.keywords if word.arg},
    }


def _base(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node


def _only_returns(function: ast.FunctionDef) -> bool:
    """Whether a function does nothing but to look at what it is given, and to give something back at its end."""
    *before, last = function.body
    return isinstance(last, ast.Return) and all(map(_only_looks, before))


def _only_looks(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value=ast.Constant()) | ast.Assert():
            return True
        case ast.If(body=[ast.Raise()], orelse=[]):
            return True
    return False


class _Called(ast.NodeTransformer):
    """Puts what a call gives back in its place: the innermost part of members of it."""

    def __init__(self, back: ast.expr) -> None:
        self._back = back

    def visit_Call(self, node: ast.Call) -> ast.AST:
        return self._back


class _Given(ast.NodeTransformer):
    """Puts what a call hands in in the place of parameters."""

    def __init__(self, given: Mapping[str, object]) -> None:
        self._given = given

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in self._given:
            return node
        return ast.copy_location(ast.parse(repr(self._given[node.id]), mode="eval").body, node)
