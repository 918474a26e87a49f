"""Which class a name of a Python file means: followed through imports into the checkout, and through the classes that it derives from.

Parsed, never imported. What lies outside of the checkout is named by where it comes from ("trl.GRPOTrainer").
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.modules import find_module
from rlstep_hooks.launch.passing_on import passes_on
from rlstep_hooks.launch.python_source import parse
from rlstep_hooks.launch.text import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FURTHEST = 8
"""Imports and base classes that are followed from a name."""


class Class(msgspec.Struct, frozen=True):
    """A class, with what the checkout adds to classes outside of it."""

    name: str
    """The name in the file that uses it."""
    package: str
    """The package that the file imports it from; "." for a file beside it or the file itself."""
    outside: frozenset[str] = frozenset()
    """The classes outside of the checkout that it is or derives from, as "package.Class"."""
    path: str = ""
    """The file of the checkout that defines it; empty where it comes from outside, or its file is not here."""
    line: int = 0
    methods: frozenset[str] = frozenset()
    """Names of the methods that the class and its bases within the checkout define, without those that only pass on (`passes_on`)."""
    assigned: frozenset[str] = frozenset()
    """The attributes that methods of the class and its bases assign, by their last names."""
    fields: frozenset[str] = frozenset()
    """The fields that the class and its bases within the checkout declare with a type, as dataclasses do."""

    @property
    def is_here(self) -> bool:
        """Whether the checkout defines the class."""
        return bool(self.path)


def class_named(name: str, path: Path, current: str | None, known: frozenset[str]) -> Class | None:
    """The class that a name of a file means; None if the file neither imports nor defines it.

    Args:
        name: The name, without dots.
        path: The file.
        current: The folder in which the launch is at that point, if that is known.
        known: Packages that are taken for the installed ones, whatever the checkout holds.
    """
    search = _Search(current, known)
    package = search.package_of(name, path)
    found = search.follow(name, path, 0)
    if package is None or found is None:
        return None
    return msgspec.structs.replace(found, name=name, package=package)


class _Search:
    def __init__(self, current: str | None, known: frozenset[str]) -> None:
        self._current = current
        self._known = known

    def package_of(self, name: str, path: Path) -> str | None:
        """The package that a file imports a name from; "." for a file beside it or this file; None if it has no such name."""
        for statement, alias in _imports(path):
            if (alias.asname or alias.name) == name:
                return (statement.module or "").partition(".")[0] if not statement.level else "."
        return "." if _definition(name, path) is not None else None

    def follow(self, name: str, path: Path, depth: int) -> Class | None:
        """The class of a name in a file; None if the file does not have the name, or the way to it is too long."""
        if depth > _FURTHEST:
            return None
        defined = _definition(name, path)
        if defined is not None:
            return self._read(defined, path, depth)
        for statement, alias in _imports(path):
            if (alias.asname or alias.name) != name:
                continue
            module = statement.module or ""
            package = module.partition(".")[0]
            if not statement.level and package in self._known:
                return Class(name, package, frozenset((f"{package}.{alias.name}",)))
            file = find_module(module, path.parent, self._current, level=statement.level)
            found = self.follow(alias.name, file, depth + 1) if file is not None else None
            if found is None:  # `from package import module`, or what is not here
                return Class(name, package or ".", frozenset((f"{package or '.'}.{alias.name}",)))
            return found
        return None

    def _read(self, node: ast.ClassDef, path: Path, depth: int) -> Class:
        own = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        methods = {each.name for each in own if not passes_on(each)}
        assigned = set(_attributes(node))
        fields = {ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)}
        outside: set[str] = set()
        for base in node.bases:
            text = ast.unparse(base).partition("[")[0]
            root, _, rest = text.partition(".")
            of = self.follow(text, path, depth + 1) if not rest and text != node.name else None
            if of is None:
                outside.add(f"{_module_of(root, path)}.{text.rpartition('.')[2]}" if rest else text)
                continue
            methods |= of.methods
            assigned |= of.assigned
            fields |= of.fields
            outside |= of.outside
        return Class(
            node.name,
            ".",
            frozenset(outside),
            str(path),
            node.lineno,
            frozenset(methods),
            frozenset(assigned),
            frozenset(fields),
        )


def _imports(path: Path) -> Iterator[tuple[ast.ImportFrom, ast.alias]]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ImportFrom):
            yield from ((node, alias) for alias in node.names)


def _definition(name: str, path: Path) -> ast.ClassDef | None:
    return next((node for node in _tree(path).body if isinstance(node, ast.ClassDef) and node.name == name), None)


def _module_of(name: str, path: Path) -> str:
    """The package behind a module's name: `import trl as t` makes "t" "trl"."""
    for node in ast.walk(_tree(path)):
        for alias in node.names if isinstance(node, ast.Import) else ():
            if (alias.asname or alias.name.partition(".")[0]) == name:
                return alias.name.partition(".")[0]
    return name


def _attributes(node: ast.ClassDef) -> Iterator[str]:
    """The last names of what a class's methods assign to: "num_generations" of `self.num_generations = 4`."""
    for inner in ast.walk(node):
        targets = (
            inner.targets
            if isinstance(inner, ast.Assign)
            else [inner.target]
            if isinstance(inner, ast.AugAssign)
            else []
        )
        yield from (target.attr for target in targets if isinstance(target, ast.Attribute))


def _tree(path: Path) -> ast.Module:
    """A file as it is parsed; an empty one where it is not Python."""
    try:
        return parse(path)
    except (LaunchError, OSError):
        return ast.Module(body=[], type_ignores=[])
