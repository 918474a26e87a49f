"""Methods of a class of somebody's own that hand their call on to the class above as it is, and do something beside it: log or save."""

from __future__ import annotations

import ast
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_LEAVES = (ast.Raise, ast.Yield, ast.YieldFrom, ast.Await, ast.Delete, ast.Global, ast.Nonlocal, ast.ExceptHandler)
"""What may end a method before its last line, or take a name away."""


def passes_on(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a method calls that of the class above once, whatever happens, with its own arguments, and gives back what that gives.

    What it was given, and what it gives back, it uses for nothing else: neither can be changed by it.

    Args:
        method: The method.
    """
    if isinstance(method, ast.AsyncFunctionDef) or method.decorator_list or not method.args.args:
        return False
    names = Counter(node.id for node in ast.walk(method) if isinstance(node, ast.Name))
    calls = [each for statement in method.body for each in _of_above(statement, method.name)]
    if len(calls) != 1 or not _hands_on(calls[0], method.args):
        return False
    if any(names[each.arg] != 1 for each in _parameters(method.args)) or names["super"] != 1:
        return False
    return _gives_back(method, calls[0], names)


def _of_above(statement: ast.stmt, name: str) -> Iterator[ast.Call]:
    """The calls of the class above that a statement makes whatever happens: those that are its whole value."""
    value = statement.value if isinstance(statement, ast.Assign | ast.Return | ast.Expr) else None
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == name:
        above = value.func.value
        if isinstance(above, ast.Call) and isinstance(above.func, ast.Name) and above.func.id == "super":
            yield value


def _parameters(arguments: ast.arguments) -> list[ast.arg]:
    """The parameters of a method without `self`."""
    of_place = [*arguments.posonlyargs, *arguments.args][1:]
    starred = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    return [*of_place, *arguments.kwonlyargs, *starred]


def _hands_on(call: ast.Call, arguments: ast.arguments) -> bool:
    """Whether a call is given each parameter of the method under its own name, or at its own place."""
    of_place = [each.arg for each in [*arguments.posonlyargs, *arguments.args][1:]]
    starred = [f"*{arguments.vararg.arg}"] if arguments.vararg is not None else []
    given = [ast.unparse(each) for each in call.args]
    at_place = [each for each in given if not each.startswith("*")]
    if given != [*at_place, *starred] or at_place != of_place[: len(at_place)]:
        return False
    by_name = {
        f"{word.arg}={ast.unparse(word.value)}" if word.arg else f"**{ast.unparse(word.value)}"
        for word in call.keywords
    }
    left = [*of_place[len(at_place) :], *(each.arg for each in arguments.kwonlyargs)]
    doubled = {f"**{arguments.kwarg.arg}"} if arguments.kwarg is not None else set()
    return by_name == {*(f"{each}={each}" for each in left), *doubled} and len(by_name) == len(call.keywords)


def _gives_back(method: ast.FunctionDef, call: ast.Call, names: Counter[str]) -> bool:
    """Whether a method ends at its last line alone, with what the call gives."""
    last = method.body[-1]
    inner = [node for statement in method.body for node in ast.walk(statement)]
    returns = [node for node in inner if isinstance(node, ast.Return)]
    if any(isinstance(node, _LEAVES) for node in inner) or returns != [last] or not isinstance(last, ast.Return):
        return False
    if last.value is call:
        return True
    kept = next(each for each in method.body if isinstance(each, ast.Assign | ast.Expr) and each.value is call)
    if not isinstance(kept, ast.Assign) or not isinstance(last.value, ast.Name):
        return False
    name = last.value.id
    return [ast.unparse(target) for target in kept.targets] == [name] and names[name] == 2
