"""The parser of a program of somebody's own that reads flags and a YAML file into dataclasses: which names it takes.

`trl.TrlParser` is given dataclasses, of the framework and of the checkout; the fields of the latter are followed through the imports of
the checkout. Parsed, never imported.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from rlstep_hooks.launch.classes import Class, class_named
from rlstep_hooks.launch.command import OwnParser
from rlstep_hooks.launch.python_source import name_of, parse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PARSER = "TrlParser"
_PARSES = "parse_args_and_config"


def parser_of(path: Path, current: str | None, packages: frozenset[str]) -> OwnParser | None:
    """The parser that a program makes and uses once; None where it makes none, or a dataclass of it is not found.

    Args:
        path: The program's file.
        current: The folder in which the launch is at that point, if that is known.
        packages: Packages that are taken for the installed ones, whatever the checkout holds.
    """
    tree = parse(path)
    made = [call for call in _calls(tree) if name_of(call.func) == _PARSER]
    used = [call for call in _calls(tree) if name_of(call.func) == _PARSES]
    if len(made) != 1 or len(used) != 1 or not made[0].args:
        return None
    given = made[0].args[0]
    names = given.elts if isinstance(given, ast.Tuple | ast.List) else [given]
    classes = [_class(name, path, current, packages) for name in names]
    if any(each is None for each in classes):
        return None
    found = [each for each in classes if each is not None]
    options = {word.arg: ast.unparse(word.value) for word in used[0].keywords}
    return OwnParser(
        program=str(path),
        fields=frozenset[str]().union(*(each.fields for each in found)),
        outside=frozenset[str]().union(*(each.outside for each in found)),
        keeps_rest=options.get("return_remaining_strings", "False") != "False",
        passes_over=options.get("fail_with_unknown_args", "True") != "True",
    )


def _class(name: ast.expr, path: Path, current: str | None, packages: frozenset[str]) -> Class | None:
    """A dataclass that a parser is given; None where it is neither here nor of one of the packages."""
    written = ast.unparse(name)
    package, _, last = written.rpartition(".")
    if package in packages:
        return Class(last, package, frozenset((written,)))
    return None if package else class_named(written, path, current, packages)


def _calls(tree: ast.Module) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))
