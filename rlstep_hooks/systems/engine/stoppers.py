"""Callbacks of a launch's own that may end its run early: the length that its settings give is then the most that it can be."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.classes import class_named
from rlstep_hooks.launch.modules import find_module
from rlstep_hooks.launch.python_source import parse
from rlstep_hooks.launch.text import LaunchError, Place
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.trainers import INSTALLED, uses

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STOP = "should_training_stop"
"""What transformers' Trainer looks at after each update (`TrainerControl`); callbacks set it."""
_STOPS = "transformers.EarlyStoppingCallback"
_FURTHEST = 3
"""Imports that are followed from the name of a function."""


class Stopper(msgspec.Struct, frozen=True):
    """A class that may end the run."""

    name: str
    place: Place
    """Where its class is defined."""


def stopper_in(path: Path, current: str | None) -> Stopper | None:
    """A class of the checkout that a file makes and that may end the run before its length is reached; None if there is none.

    Args:
        path: The file.
        current: The folder in which the launch is at that point, if that is known.
    """
    tree = parse(path)
    if (own := _within_functions(tree, path)) is not None:
        return own
    known = INSTALLED.union(*(entry.packages for entry in index.entries()))
    for name in dict(uses(tree)):
        found = class_named(name, path, current, known) if name[:1].isupper() else None
        if found is not None and found.is_here and (STOP in found.assigned or _STOPS in found.outside):
            return Stopper(found.name, Place(found.path, found.line, 1))
        made = _made_by(name, path, current, known, 0) if found is None else None
        if made is not None:
            return made
    return None


def _within_functions(tree: ast.AST, path: Path) -> Stopper | None:
    """A class that is defined within a function, which may give it back (`def make_callback(config): class Best...`)."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    classes = (node for function in functions for node in ast.walk(function) if isinstance(node, ast.ClassDef))
    found = next((node for node in classes if any(_stops(node))), None)
    return Stopper(found.name, Place(str(path), found.lineno, 1)) if found is not None else None


def _stops(node: ast.ClassDef) -> Iterator[bool]:
    """A true value for each statement of a class that may end the run."""
    yield from (
        True
        for inner in ast.walk(node)
        if isinstance(inner, ast.Attribute) and inner.attr == STOP and isinstance(inner.ctx, ast.Store)
    )
    yield from (True for base in node.bases if ast.unparse(base).endswith(_STOPS.rpartition(".")[2]))


def _made_by(name: str, path: Path, current: str | None, known: frozenset[str], depth: int) -> Stopper | None:
    """A class that a function makes which a file imports from the checkout; None where there is none."""
    tree = _tree(path) if depth < _FURTHEST else None
    for node in tree.body if tree is not None else ():
        if isinstance(node, ast.FunctionDef) and node.name == name and depth:
            return _within_functions(ast.Module([node], []), path)
    for statement in ast.walk(tree) if tree is not None else ():
        if not isinstance(statement, ast.ImportFrom) or (statement.module or "").partition(".")[0] in known:
            continue
        for alias in statement.names:
            file = None
            if (alias.asname or alias.name) == name:
                file = find_module(statement.module or "", path.parent, current, level=statement.level)
            if file is not None:
                return _made_by(alias.name, file, current, known, depth + 1)
    return None


def _tree(path: Path) -> ast.Module | None:
    """A file as it is parsed; None where it cannot be."""
    try:
        return parse(path)
    except (LaunchError, OSError):
        return None
