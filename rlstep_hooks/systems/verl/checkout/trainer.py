"""Which trainer a program of a checkout builds: the class whose name it calls, or calls by way of a name of its own."""

from __future__ import annotations

import ast
import os.path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.checkout import UNKNOWN, taken, value_of
from rlstep_hooks.launch.python_source import name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from rlstep_hooks.launch.checkout import Source


class Trainer(msgspec.Struct, frozen=True):
    """A class that a program builds."""

    name: str
    path: str
    """The file that has it, below the package."""


def trainer_of(main: Source, program: str, values: Mapping[str, object]) -> Trainer | None:
    """The one trainer that a program builds; None where it builds several, or where the way to it is not clear.

    Args:
        main: The program's file.
        program: Its path below the package.
        values: The settings that are known: a program may choose its trainer by one of them.
    """
    tree = main.tree()
    if tree is None:
        return None
    reader = _Program(tree, values)
    imports = _imports(reader.nodes)
    built = {name for name in reader.built() if _is_trainer(imports.get(name, ("", name))[1])}
    if len(built) != 1:
        return None
    name = built.pop()
    is_here = any(isinstance(node, ast.ClassDef) and node.name == name for node in tree.body)
    return Trainer(name, program) if is_here else _found(imports, name, program)


def imported(tree: ast.Module, name: str, file: str) -> Trainer | None:
    """The class that a file imports under a name; None where it imports none.

    Args:
        tree: The file.
        name: The name.
        file: Its path below the package.
    """
    return _found(_imports(ast.walk(tree)), name, file)


def _imports(nodes: Iterable[ast.AST]) -> dict[str, tuple[str, str]]:
    """The names that imports give, each with the path of its module and its name there."""
    return {name: found for node in nodes if isinstance(node, ast.ImportFrom) for name, found in _of(node)}


def _found(imports: Mapping[str, tuple[str, str]], name: str, file: str) -> Trainer | None:
    if name not in imports:
        return None
    path, name = imports[name]
    if path.startswith("."):
        path = os.path.normpath(os.path.join(os.path.dirname(file), path))
    return Trainer(name, f"{path.removeprefix('verl/')}.py")


def _is_trainer(name: str) -> bool:
    """Whether a class trains by rewards, by its name."""
    return name.endswith("Trainer") and "SFT" not in name


def _of(node: ast.ImportFrom) -> Iterator[tuple[str, tuple[str, str]]]:
    """The names that an import gives, each with the path of its module and its name there."""
    above = "../" * (node.level - 1) if node.level > 1 else "./" if node.level else ""
    path = above + (node.module or "").replace(".", "/")
    for alias in node.names:
        yield alias.asname or alias.name, (path, alias.name)


class _Inserted(ast.NodeTransformer):
    """Puts what a name was given in its place in a condition: `if hints:` after `hints = config.get("hints", False)`."""

    def __init__(self, tree: ast.Module) -> None:
        given: dict[str, list[ast.expr]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    given.setdefault(name_of(target), []).append(node.value)
        self._given = {name: values[0] for name, values in given.items() if len(values) == 1}

    def visit_If(self, node: ast.If) -> ast.AST:
        match node.test:
            case ast.Name(id=name):
                node.test = self._given.get(name, node.test)
            case ast.Compare(left=ast.Name(id=name)):
                node.test.left = self._given.get(name, node.test.left)
        return self.generic_visit(node)


class _Program:
    def __init__(self, tree: ast.Module, values: Mapping[str, object]) -> None:
        self._values = values
        self.nodes = list(taken(_Inserted(tree).visit(tree), values))
        """What the launch may run: without the branches that its settings rule out."""
        assigned = [node for node in self.nodes if isinstance(node, ast.Assign)]
        self._assigned = [(name_of(target), node.value) for node in assigned for target in node.targets]

    def built(self) -> set[str]:
        """The names of all that is called."""
        called = {name_of(_without_ray(node.func)) for node in self.nodes if isinstance(node, ast.Call)}
        return {found for name in called for found in self._classes(name, frozenset())}

    def _classes(self, name: str, seen: frozenset[str]) -> set[str]:
        """The classes that a name may stand for: itself, where nothing is assigned to it."""
        values = [value for target, value in self._assigned if target == name]
        if not values or name in seen:
            return {name}
        parts = [part for value in values for part in self._choices(value)]
        classes = (self._classes(part, seen | {name}) - {name} for part in parts)
        return set().union(*classes)

    def _choices(self, value: ast.expr) -> list[str]:
        if isinstance(value, ast.IfExp):
            holds = value_of(value.test, self._values)
            either = [value.body, value.orelse] if holds is UNKNOWN else [value.body if holds else value.orelse]
            return [name for each in either for name in self._choices(each)]
        return [name_of(value)]


def _without_ray(function: ast.expr) -> ast.expr:
    """What a call makes an actor of, `Trainer` in `Trainer.remote(...)` and `Trainer.options(...).remote(...)`; else the function."""
    if not isinstance(function, ast.Attribute) or function.attr != "remote":
        return function
    made = function.value
    options = made.func if isinstance(made, ast.Call) else None
    return options.value if isinstance(options, ast.Attribute) and options.attr == "options" else made
