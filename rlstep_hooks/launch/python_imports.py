"""What a file imports from a file beside it: `from config import SIZES, CFG`, `import config`. Parsed, never imported."""

from __future__ import annotations

import ast
import copy
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.modules import find_import
from rlstep_hooks.launch.python_source import text_of
from rlstep_hooks.launch.text import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.launch.python_changes import Changes

_FURTHEST = 4
"""Files up to which a value is followed from one to the next."""


class _Import(msgspec.Struct, frozen=True):
    """What a name is imported as."""

    file: Path
    name: str
    """The name in the other file; empty where the file itself is imported."""


class Found(msgspec.Struct, frozen=True):
    """An expression of this file in the words of the file that its root is imported from."""

    file: Path
    node: ast.expr


class Imports:
    """The values that one file imports from files beside it.

    Args:
        tree: The file.
        source: Its path.
        changes: What it changes of its containers.
        depth: Files from which a value has been followed to this one.
    """

    def __init__(self, tree: ast.Module, source: str, changes: Changes, depth: int) -> None:
        self._folder = Path(source).parent
        self._changes = changes
        self._statements = dict(imported_once(tree)) if depth < _FURTHEST else {}
        self._files: dict[str, _Import | None] = {}

    def found(self, node: ast.expr) -> Found | None:
        """An expression, where it is a member of something imported, or that itself; None otherwise, and where this file changes it."""
        root, first = _root(node)
        if root is None or root.id not in self._statements:
            return None
        of = self._import_of(root.id)
        if of is None:
            return None
        if any(change.key is None or first is None or change.key == first for change in self._changes.of(root.id)):
            return None
        there = _in_other(node, root, of.name)
        if there is None or not _defines(of.file, _root(there)[0]):
            return None
        return Found(of.file, there)

    def origin(self, name: str) -> _Import | None:
        """The file and the name there of what this file imports under a name; None where it imports nothing of a file beside it."""
        return self._import_of(name) if name in self._statements else None

    def _import_of(self, name: str) -> _Import | None:
        if name not in self._files:
            self._files[name] = self._look_up(name)
        return self._files[name]

    def _look_up(self, name: str) -> _Import | None:
        statement, alias = self._statements[name]
        if isinstance(statement, ast.Import):
            file = find_import(alias.name, self._folder) if alias.asname or "." not in alias.name else None
            return _Import(file, "") if file is not None else None
        module = statement.module or ""
        file = find_import(f"{module}.{alias.name}".lstrip("."), self._folder, level=statement.level)
        if file is not None:
            return _Import(file, "")
        file = find_import(module, self._folder, level=statement.level)
        return _Import(file, alias.name) if file is not None else None


def written(value: Any, at: ast.expr) -> ast.expr:
    """The expression of a plain value, at the place of another expression."""
    node = ast.parse(repr(value), mode="eval").body
    for inner in ast.walk(node):
        ast.copy_location(inner, at)
    return node


def placeholder(file: Path, node: ast.expr) -> ast.expr:
    """What stands for an expression of another file that is no plain value: messages name its place."""
    return ast.Name(f"{file.name}:{node.lineno}", ast.Load())


def any_beside(tree: ast.Module, source: str) -> bool:
    """Whether a file imports anything from a file beside it."""
    folder = Path(source).parent
    return any(
        find_import((statement.module or alias.name) if isinstance(statement, ast.ImportFrom) else alias.name, folder,
                    level=statement.level if isinstance(statement, ast.ImportFrom) else 0)
        is not None
        for _, (statement, alias) in imported_once(tree)
    )  # fmt: skip


def imported_once(tree: ast.Module) -> Iterator[tuple[str, tuple[ast.Import | ast.ImportFrom, ast.alias]]]:
    """The names that a file binds by one import and in no other way."""
    bound: Counter[str] = Counter()
    found: dict[str, tuple[ast.Import | ast.ImportFrom, ast.alias]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                name = (alias.asname or alias.name).partition(".")[0]
                bound[name] += 1
                found[name] = (node, alias)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound[node.id] += 1
        elif isinstance(node, ast.arg):
            bound[node.arg] += 1
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound[node.name] += 1
    yield from ((name, each) for name, each in found.items() if bound[name] == 1)


def _root(node: ast.expr) -> tuple[ast.Name | None, str | None]:
    """The name that an expression of members begins with, and the first member that it takes of it."""
    first: str | None = None
    while True:
        match node:
            case ast.Name():
                return node, first
            case ast.Attribute(value=inner, attr=name):
                node, first = inner, name
            case ast.Subscript(value=inner, slice=ast.Constant(value=key)):
                node, first = inner, str(key)
            case ast.Call(func=ast.Attribute(value=inner, attr="get"), args=[ast.Constant(value=key), *_]):
                node, first = inner, str(key)
            case ast.Call(func=ast.Name() as inner, args=[], keywords=[]):
                node = inner
            case _:
                return None, None


def _in_other(node: ast.expr, root: ast.Name, name: str) -> ast.expr | None:
    """The expression in the words of the other file; None where the root is a file and nothing is taken of it."""

    class _Renamed(ast.NodeTransformer):
        def visit_Attribute(self, inner: ast.Attribute) -> ast.expr:
            if not name and isinstance(inner.value, ast.Name) and inner.value.id == root.id:
                return ast.Name(inner.attr, ast.Load())
            self.generic_visit(inner)
            return inner

        def visit_Name(self, inner: ast.Name) -> ast.expr:
            return ast.Name(name or inner.id, ast.Load())

    if not name and isinstance(node, ast.Name):
        return None
    there: ast.expr = _Renamed().visit(copy.deepcopy(node))
    for inner in ast.walk(there):
        # What the top of the other file changes has happened before anything can be imported from it.
        if isinstance(inner, ast.expr):
            inner.lineno, inner.col_offset = sys.maxsize, 0
    return there


def _defines(file: Path, name: ast.Name | None) -> bool:
    """Whether a file may assign or import a name, or define a class of it: a function is no value, and is not worth parsing."""
    if name is None:
        return False
    try:
        text = text_of(file)
    except (LaunchError, OSError):
        return False
    word = re.escape(name.id.encode())
    written_so = rb"%b\s*(?::[^=\n]+)?=|class %b\b|(?:from|import)\b.*\b%b\b|[ \t]+%b,?[ \t]*$" % ((word,) * 4)
    return re.search(rb"(?m)^(?:%b)" % written_so, text) is not None
