"""A configuration that is a dataclass (a structured configuration of OmegaConf): which names it takes.

The fields of a dataclass are followed through the imports of the checkout; they are parsed, never imported. What is not found takes any
name, so that only a name that is surely none of the fields is named.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from rlstep_hooks.launch.modules import find_module
from rlstep_hooks.launch.python_source import parse
from rlstep_hooks.launch.text import LaunchError

if TYPE_CHECKING:
    from pathlib import Path

_FURTHEST = 8
"""Imports that are followed from a name."""
_OPTIONAL = re.compile(r"Optional\[(\w+)\]|(\w+) \| None|(\w+)")


def owner_without(name: str, owner: str, file: Path) -> str | None:
    """The dataclass that a setting would be a field of and that has no such field; None where it has, or nobody can tell.

    Args:
        name: The setting, by its dotted name.
        owner: The dataclass of the whole configuration.
        file: The file that defines it.
    """
    for part in name.split("."):
        found = _definition(owner, file, 0)
        if found is None or not _is_dataclass(found[0]):
            return None
        fields = _fields(*found)
        if fields is None:
            return None
        if part not in fields:
            return owner
        annotation, file = fields[part]
        kind = _OPTIONAL.fullmatch(annotation)
        if kind is None:
            return None
        owner = next(filter(None, kind.groups()))
    return None


def definition_of(name: str, file: Path) -> ast.ClassDef | None:
    """The class that a name of a file means, in that file or where it imports it from; None where it is not in the checkout."""
    found = _definition(name, file, 0)
    return found[0] if found is not None else None


def _definition(name: str, file: Path, depth: int) -> tuple[ast.ClassDef, Path] | None:
    """The class that a name of a file means, with the file that defines it; None where that is not found."""
    try:
        tree = parse(file)
    except (LaunchError, OSError):
        return None
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node, file
    for node in tree.body if depth < _FURTHEST else ():
        alias = _alias(node, name)
        if isinstance(node, ast.ImportFrom) and alias is not None:
            module = find_module(node.module or "", file.parent, None, level=node.level)
            return _definition(alias.name, module, depth + 1) if module is not None else None
    return None


def _alias(node: ast.stmt, name: str) -> ast.alias | None:
    names = node.names if isinstance(node, ast.ImportFrom) else ()
    return next((alias for alias in names if (alias.asname or alias.name) == name), None)


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def _fields(node: ast.ClassDef, file: Path) -> dict[str, tuple[str, Path]] | None:
    """The fields of a dataclass and of those that it derives from, each with its type and the file; None where one is not found."""
    fields: dict[str, tuple[str, Path]] = {}
    for base in node.bases:
        found = _definition(ast.unparse(base), file, 0)
        inherited = _fields(*found) if found is not None and found[0] is not node else None
        if inherited is None:
            return None
        fields |= inherited
    own = (each for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name))
    return fields | {ast.unparse(each.target): (ast.unparse(each.annotation), file) for each in own}
