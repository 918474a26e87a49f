"""A Python file as if functions that it imports, and that only hand their keywords on to a class, stood in it. Parsed, never executed.

`config = build(**sizes)` after `from sizes import build` is read so where `build` drops the keywords that the class does not take.
"""

from __future__ import annotations

import ast
import builtins
import re
from typing import TYPE_CHECKING

from rlstep_hooks.launch.modules import find_import
from rlstep_hooks.launch.python_source import parse, text_of
from rlstep_hooks.launch.text import LaunchError

if TYPE_CHECKING:
    from pathlib import Path

_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.Global, ast.Nonlocal)


def with_keyword_functions(path: Path) -> str | None:
    """The text of a file with such functions behind its last line, instead of their imports; None where it imports none.

    Args:
        path: The file.
    """
    text = text_of(path).decode(errors="replace")
    behind: list[str] = []
    for node in ast.walk(parse(path)):
        if not isinstance(node, ast.ImportFrom):
            continue
        for alias in node.names:
            source = _source_of(node, alias, path) if alias.asname is None else None
            if source is not None:
                text = _without_import(text, node, alias.name)
                behind.append(source)
    return "\n".join((text.rstrip("\n"), *behind)) + "\n" if behind else None


def _source_of(node: ast.ImportFrom, alias: ast.alias, path: Path) -> str | None:
    """The imports and the text of a function that hands its keywords on; None for any other name."""
    file = find_import(node.module or "", path.parent, level=node.level)
    if file is None:
        return None
    try:
        tree = parse(file)
    except (LaunchError, OSError):
        return None
    functions = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == alias.name]
    if len(functions) != 1 or not _hands_on(functions[0]):
        return None
    imports = _imports_of(functions[0], tree)
    return "\n".join((*imports, ast.unparse(_without_types(functions[0])))) if imports is not None else None


def _hands_on(function: ast.FunctionDef) -> bool:
    """Whether a function takes keywords alone, and gives back what it makes of a class at its only `return`."""
    given = function.args
    if (
        given.kwarg is None
        or given.args
        or given.posonlyargs
        or given.kwonlyargs
        or given.vararg
        or function.decorator_list
    ):
        return False
    if any(isinstance(node, _NESTED) for body in function.body for node in ast.walk(body)):
        return False
    results = [node for node in ast.walk(function) if isinstance(node, ast.Return)]
    if len(results) != 1 or results[0] is not function.body[-1]:
        return False
    made = results[0].value
    return isinstance(made, ast.Call) and isinstance(made.func, ast.Name) and made.func.id.endswith("Config")


def _imports_of(function: ast.FunctionDef, tree: ast.Module) -> list[str] | None:
    """The imports that a function needs; None where it uses something else of its file."""
    names = [node for body in function.body for node in ast.walk(body) if isinstance(node, ast.Name)]
    own = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    used = {node.id for node in names} - own - {function.args.kwarg.arg if function.args.kwarg is not None else ""}
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and not node.level):
            for alias in node.names:
                one = ast.Import([alias]) if isinstance(node, ast.Import) else ast.ImportFrom(node.module, [alias], 0)
                found[(alias.asname or alias.name).partition(".")[0]] = ast.unparse(one)
    needed = {name for name in used if name in found or not hasattr(builtins, name)}
    return [found[name] for name in sorted(needed)] if needed.issubset(found) else None


def _without_types(function: ast.FunctionDef) -> ast.FunctionDef:
    return ast.FunctionDef(
        function.name, ast.arguments([], [], None, [], [], ast.arg(function.args.kwarg.arg), []),  # type: ignore[union-attr]
        function.body, [], None, lineno=1,
    )  # fmt: skip


def _without_import(text: str, node: ast.ImportFrom, name: str) -> str:
    """A text whose import gives a name another one; all lines keep their numbers."""
    lines = text.split("\n")
    first, last = node.lineno - 1, (node.end_lineno or node.lineno)
    head, middle, names = "\n".join(lines[first:last]).partition("import")
    names = re.sub(rf"\b{name}\b", f"{name} as {name}_elsewhere", names, count=1)
    lines[first:last] = f"{head}{middle}{names}".split("\n")
    return "\n".join(lines)
