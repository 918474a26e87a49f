"""What a function of a file gives back to one call of it, by the branches that this call takes: `pick(args.size, "size", 8)`."""

from __future__ import annotations

import ast
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import msgspec

from rlstep_hooks.launch.python_source import NotLiteralError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rlstep_hooks.launch.python_scopes import Scopes

_T = TypeVar("_T")
DEEPEST = 20
"""Expressions within each other up to which a value is worked out: names may stand for each other in a circle."""


class Frame(msgspec.Struct, frozen=True):
    """One call of a function while its value is worked out."""

    function: ast.FunctionDef
    given: dict[str, ast.expr]
    """What its parameters are in this call, as the caller writes it."""


class Calls:
    """The calls of a file's functions that are being worked out, each within the one before it."""

    def __init__(self, scopes: Scopes) -> None:
        self._scopes = scopes
        self._frames: list[Frame] = []

    @contextmanager
    def within(self, function: ast.FunctionDef, given: Mapping[str, ast.expr]) -> Iterator[None]:
        """What is worked out of the function's own names is so for a call that hands it this."""
        self._frames.append(Frame(function, dict(given)))
        try:
            yield
        finally:
            self._frames.pop()

    def given(self, name: ast.Name) -> ast.expr | None:
        """What the innermost call gives a parameter of its function; None for any other name."""
        frame = self._frames[-1] if self._frames else None
        is_parameter = frame is not None and name.id in frame.given and self._scopes.scope(name) is frame.function
        return frame.given[name.id] if frame is not None and is_parameter else None

    def of_caller(self, work: Callable[[], _T]) -> _T:
        """What is worked out where a call stands, of what it gives a function."""
        frame = self._frames.pop()
        try:
            return work()
        finally:
            self._frames.append(frame)


def given_back(body: Sequence[ast.stmt], holds: Callable[[ast.expr], bool]) -> ast.expr | None:
    """The expression that a function returns to a call; None where it does more than to choose one.

    Args:
        body: The statements of the function.
        holds: Whether a condition holds in this call.
    """
    for statement in body:
        match statement:
            case ast.Expr(value=ast.Constant() | ast.Call(func=ast.Name(id="print"))) | ast.Pass():
                continue
            case ast.Assign(targets=[ast.Name()]) | ast.AnnAssign(target=ast.Name()):
                continue  # a name of its own, which is worked out where it is used
            case ast.With(body=inner):
                return given_back([*inner, *body[body.index(statement) + 1 :]], holds)
            case ast.Import() | ast.ImportFrom():
                continue
            case ast.Return(value=value):
                return value or ast.copy_location(ast.Constant(None), statement)
            case ast.If(test=test, body=[ast.Raise()], orelse=[]) | ast.Assert(test=test):
                if _ends(test, holds, ends_if=isinstance(statement, ast.If)):
                    return None
            case ast.If(test=test, body=first, orelse=second):
                branch = first if holds(test) else second
                if any(isinstance(node, ast.Assign | ast.AnnAssign) for node in branch):
                    return None
                found = given_back(branch, holds) if branch else None
                if found is not None or not _falls_through(branch):
                    return found
            case _:
                return None
    return None


def _ends(test: ast.expr, holds: Callable[[ast.expr], bool], *, ends_if: bool) -> bool:
    """Whether a check certainly ends the program; one that only the run decides lets pass what it gives back."""
    try:
        return holds(test) is ends_if
    except NotLiteralError:
        return False


def _falls_through(branch: Sequence[ast.stmt]) -> bool:
    """Whether a branch that returns nothing does nothing either."""
    return all(isinstance(node, ast.Pass) or isinstance(getattr(node, "value", None), ast.Constant) for node in branch)
