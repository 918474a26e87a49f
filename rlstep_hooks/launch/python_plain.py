"""What builtins, methods and comprehensions give for plain values: `isinstance(value, dict)`, `text.split(".")`, `math.ceil(n / 4)`.

These are Python's own operations on numbers, texts, lists and mappings whose values are known. Nothing of the file is executed.
"""

from __future__ import annotations

import ast
import math
from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.python_source import NotLiteralError
from rlstep_hooks.launch.python_substitution import expression_of, substituted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

UNKNOWN = object()
"""Stands for the result of an expression of another kind."""
_TYPES: dict[str, type] = {"dict": dict, "list": list, "str": str, "int": int, "float": float, "bool": bool}
_OF_TEXTS = frozenset(
    (
        *("split", "rsplit", "startswith", "endswith", "replace", "join", "removeprefix", "removesuffix"),
        *("lower", "upper", "strip", "lstrip", "rstrip", "isdigit", "title", "capitalize"),
    )
)
"""Methods of texts that are given texts alone, or nothing."""
_OF_MAPPINGS = frozenset(("items", "keys", "values", "copy"))
_MATH: dict[str, Any] = {"math.ceil": math.ceil, "math.floor": math.floor}
_OF_LISTS: dict[str, Any] = {"sum": sum, "sorted": sorted, "any": any, "all": all, "max": max, "min": min}
_COPIES = frozenset(("dict", "deepcopy", "copy.deepcopy", "copy.copy"))
_SAME_LISTS = frozenset(("list", "tuple"))
_MOST = 2_000
"""Turns of a comprehension that are read."""


def plain_result(node: ast.expr, literal: Callable[[ast.expr], Any], is_own: Callable[[str], bool]) -> Any:
    """The value of an expression; `UNKNOWN` for one of another kind.

    Args:
        node: The expression.
        literal: The value of a part of it; raises `NotLiteralError` where only the run knows it.
        is_own: Whether the file defines a function of a name itself, so that a builtin is not meant.
    """
    match node:
        case ast.JoinedStr(values=parts):
            return "".join(_written(part, literal) for part in parts)
        case ast.ListComp(elt=each, generators=loops) | ast.GeneratorExp(elt=each, generators=loops):
            return [literal(substituted(each, turn)) for turn in _turns(node, loops, literal)]
        case ast.DictComp(key=key, value=value, generators=loops):
            turns = _turns(node, loops, literal)
            return {str(literal(substituted(key, turn))): literal(substituted(value, turn)) for turn in turns}
        case ast.Dict(keys=keys, values=values) if None in keys:
            return _merged(keys, values, literal)
        case ast.Call(func=ast.Name(id="isinstance"), args=[of, kinds], keywords=[]):
            return _is_of(literal(of), kinds)
        case ast.Call(func=callee, args=[of], keywords=[]) if ast.unparse(callee) in _COPIES:
            return literal(of)  # a value of its own, whatever happens to the other
        case ast.Call(func=ast.Name(id=name), args=[of], keywords=[]) if not is_own(name):
            return _of_builtin(name, of, literal)
        case ast.Call(func=callee, args=[of], keywords=[]) if (name := ast.unparse(callee)) in _MATH:
            return _MATH[name](_number(literal(of), of))
        case ast.Call(func=ast.Attribute(value=of, attr=method), args=given, keywords=[]):
            if method in _OF_MAPPINGS and not given:
                return _of_mapping(literal(of), method)
            if method in _OF_TEXTS:
                return _of_text(literal(of), method, [literal(each) for each in given])
    return UNKNOWN


def _of_builtin(name: str, of: ast.expr, literal: Callable[[ast.expr], Any]) -> Any:
    if name == "abs":
        return abs(_number(literal(of), of))
    if name not in _OF_LISTS and name not in _SAME_LISTS:
        return UNKNOWN
    whole = literal(of)
    if not isinstance(whole, list | dict):
        raise NotLiteralError(of)
    return list(whole) if name in _SAME_LISTS else _OF_LISTS[name](list(whole))


def _is_of(value: object, kinds: ast.expr) -> bool:
    """Whether a value is of one of some types. Lists and tuples are read as one thing: which of both it is, is not known."""
    names = [ast.unparse(each) for each in kinds.elts] if isinstance(kinds, ast.Tuple) else [ast.unparse(kinds)]
    if isinstance(value, list):
        if ("list" in names) is not ("tuple" in names):
            raise NotLiteralError(kinds)
        return "list" in names
    if any(name not in _TYPES and name != "tuple" for name in names) or not isinstance(
        value, dict | str | int | float | None
    ):
        raise NotLiteralError(kinds)
    return any(isinstance(value, _TYPES[name]) for name in names if name in _TYPES)


def _of_mapping(value: object, method: str) -> Any:
    if not isinstance(value, dict):
        return UNKNOWN
    if method == "items":
        return [[key, each] for key, each in value.items()]
    return value if method == "copy" else list(value.values() if method == "values" else value)


def _of_text(value: object, method: str, given: list[Any]) -> Any:
    plain = isinstance(value, str) and all(isinstance(each, str | int) for part in given for each in _flat(part))
    return getattr(value, method)(*given) if plain else UNKNOWN


def _flat(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _written(part: ast.expr, literal: Callable[[ast.expr], Any]) -> str:
    """A part of an f-string as Python writes it."""
    match part:
        case ast.Constant(value=str(text)):
            return text
        case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
            found = literal(value)
            if found is None or isinstance(found, str | int | float):
                return str(found)
    raise NotLiteralError(part)


def _merged(keys: list[ast.expr | None], values: list[ast.expr], literal: Callable[[ast.expr], Any]) -> dict[str, Any]:
    """`{**first, "key": value}`: the later of two values of one key counts."""
    whole: dict[str, Any] = {}
    for key, value in zip(keys, values, strict=True):
        found = literal(value)
        if key is not None:
            whole[str(literal(key))] = found
        elif isinstance(found, dict):
            whole |= found
        else:
            raise NotLiteralError(value)
    return whole


def _turns(
    node: ast.expr, loops: list[ast.comprehension], literal: Callable[[ast.expr], Any]
) -> Iterator[dict[str, ast.expr]]:
    """What each turn of a comprehension binds its names to, for those that its conditions let pass."""
    (loop, *more) = loops
    targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
    names = [each.id for each in targets if isinstance(each, ast.Name)]
    inner = (each for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))
    # Where something within binds a name again, the value that a turn gives it is not meant there.
    if more or loop.is_async or len(names) != len(targets) or len(list(inner)) != len(names):
        raise NotLiteralError(node)
    whole = literal(loop.iter)
    if not isinstance(whole, list | dict) or len(whole) > _MOST:
        raise NotLiteralError(node)
    for each in whole:
        parts = each if isinstance(loop.target, ast.Tuple) else [each]
        if not isinstance(parts, list) or len(parts) != len(names):
            raise NotLiteralError(node)
        turn = {name: expression_of(part) for name, part in zip(names, parts, strict=True)}
        if all(literal(substituted(test, turn)) for test in loop.ifs):
            yield turn


def _number(value: object, node: ast.expr) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NotLiteralError(node)
    return value
