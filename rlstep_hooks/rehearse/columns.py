"""The columns of a data set that a script names: read where a function takes a row, or as arguments of a reward function."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

GIVEN = frozenset(
    {
        "self", "prompts", "completions", "completion_ids", "completions_ids", "trainer_state", "log_extra", "log_metric",
        "environments", "kwargs", "args",
    }
)  # fmt: skip
"""Arguments of a reward function that come from the trainer."""
_MESSAGE = frozenset({"role", "content"})


class Named(msgspec.Struct, frozen=True):
    """What scripts say about their rows."""

    columns: tuple[str, ...]
    """Columns that the set itself must have."""
    conversational: bool
    """Whether completions are read as messages."""
    marked: bool
    """Whether answers are behind "####"."""
    beginnings: dict[str, str] = {}
    """Column -> the text that a script keeps only those rows for that begin with it."""
    like: dict[str, str] = {}
    """Column -> the usual column whose values it holds, where the launch says what it reads a column as."""


def named_in(sources: Iterable[str]) -> Named:
    """The columns that scripts name; a script that cannot be parsed names none."""
    text = "\n".join(sources)
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return Named((), False, False)
    read: dict[str, None] = {}
    asked: dict[str, None] = {}
    made: set[str] = set()
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            names = [each.arg for each in _arguments(function)]
            if "completions" in names:
                asked |= dict.fromkeys(name for name in names if name not in GIVEN and not _optional(function, name))
            kept = set(names) - {"completions", "prompts", "completion", "prompt"}
            read |= dict.fromkeys(_subscripts(function, kept))
            made |= set(_made(function))
    read |= dict.fromkeys(_in_calls(tree, {"remove_columns", "select_columns"}))
    renamed = list(_renamed(tree))
    read |= dict.fromkeys(old for old, _ in renamed)
    made |= {new for _, new in renamed}
    columns = [name for name in read if name not in _MESSAGE]
    columns += [name for name in (*asked, "prompt") if name not in made and name not in columns]
    return Named(tuple(columns), _reads_messages(tree), "####" in text, dict(_beginnings(tree)))


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[ast.arg]:
    each = function.args
    return [*each.posonlyargs, *each.args, *each.kwonlyargs, *([each.kwarg] if each.kwarg else [])]


def _optional(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, name: str) -> bool:
    """Whether an argument has a default, or is the rest."""
    each = function.args
    positional = [*each.posonlyargs, *each.args]
    defaulted = {argument.arg for argument in positional[len(positional) - len(each.defaults) :]}
    defaulted |= {argument.arg for argument, value in zip(each.kwonlyargs, each.kw_defaults, strict=True) if value}
    return name in defaulted or (each.kwarg is not None and each.kwarg.arg == name)


def _subscripts(function: ast.AST, names: set[str]) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _is_name(node.value, names):
            yield from _texts(node.slice)
        elif _is_get(node) and _is_name(node.func.value, names):  # type: ignore[attr-defined]  # a call of an attribute
            yield from _texts(node.args[0])  # type: ignore[attr-defined]  # a call


def _is_get(node: ast.AST) -> bool:
    """`row.get("name")`."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "get"
        and bool(node.args)
    )


def _made(function: ast.AST) -> Iterator[str]:
    """Columns that a function gives a row: keys of a dict that it returns, and subscripts that it sets."""
    returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    if isinstance(function, ast.Lambda):
        returned = [function.body]
    for value in returned:
        for node in ast.walk(value) if value is not None else ():
            if isinstance(node, ast.Dict):
                yield from (text for key in node.keys if key is not None for text in _texts(key))
                break
    for node in ast.walk(function):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            yield from _texts(node.slice)


def _in_calls(tree: ast.AST, methods: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in methods:
            yield from (text for argument in node.args for text in _texts(argument))


def _beginnings(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """`row["question"].startswith("Does")`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "startswith":
            column, begin = node.func.value, [text for argument in node.args for text in _texts(argument)]
            if isinstance(column, ast.Subscript) and begin:
                yield from ((name, begin[0]) for name in _texts(column.slice))


def _renamed(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "rename_column":
            texts = [text for argument in node.args for text in _texts(argument)]
            if len(texts) == 2:
                yield texts[0], texts[1]


def _reads_messages(tree: ast.AST) -> bool:
    """Whether something reads `completion[0]["content"]`, or makes a prompt of messages."""
    return any(isinstance(node, ast.Constant) and node.value == "content" for node in ast.walk(tree))


def _is_name(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _texts(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [text for each in node.elts for text in _texts(each)]
    return []
