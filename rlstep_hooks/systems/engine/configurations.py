"""Whose configuration a Python file gives to a trainer: the framework's, a class of the checkout that derives from it, or neither.

A class of the checkout has defaults of its own. A configuration that another file makes is not in the file that trains: the defaults of
the framework would be planned in its place.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.classes import Class, class_named
from rlstep_hooks.launch.python_file import Calls, read_calls
from rlstep_hooks.launch.python_source import parse
from rlstep_hooks.launch.text import Place, UnknownText
from rlstep_hooks.systems.engine import index

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import System

_GIVEN = ("args", "config")
_PLACE = 2
"""The place among the arguments at which a trainer takes its configuration, if it is not named: `GRPOTrainer(model, reward_funcs,
args)`."""


class Configured(msgspec.Struct, frozen=True):
    """The calls of a file, with its own configurations under the name of the framework's."""

    calls: Calls
    hidden: UnknownText | None = None
    """Why the configuration of the trainer is not known; None where it is."""
    own: bool = False
    """Whether the file has a configuration of its own, which derives from the framework's."""


def with_configurations(calls: Calls, file: Path, current: str | None, system: System) -> Configured:
    """What a file's configurations are.

    Args:
        calls: The calls of the file.
        file: The file.
        current: The folder in which the launch is at that point, if that is known.
        system: The system whose trainer it uses.
    """
    entries = index.entries_of(system.name)
    packages = frozenset(package for entry in entries for package in entry.packages)
    made = frozenset(callee for entry in entries for callee in entry.calls if not callee.endswith("Trainer"))
    ours = frozenset(name for name in made if name.endswith("Config"))
    tree = parse(file)
    own: dict[str, tuple[Class, str]] = {}
    hidden: UnknownText | None = None
    for name in sorted(set(_used(tree))):
        one = class_named(name, file, current, packages) if name.isidentifier() else None
        parents = sorted(ours.intersection(_last(packages, one))) if one is not None and one.is_here else []
        if one is None or not parents:
            continue
        own[name] = (one, parents[0])
        assigned = sorted(one.assigned.intersection(system.settings))
        if assigned:
            why = f"{name} ({one.path}:{one.line}) assigns {', '.join(assigned)} itself"
            hidden = UnknownText("", why, Place(one.path, one.line, 1))
    if ours and not own and made.isdisjoint(_made_here(tree)):
        hidden = hidden or _elsewhere(tree, file, system)
    return Configured(_named_as_ours(calls, own, current, packages), hidden, own=bool(own))


def _last(packages: frozenset[str], one: Class) -> Iterator[str]:
    for name in one.outside:
        package, _, last = name.partition(".")
        if package in packages:
            yield last


def _named_as_ours(
    calls: Calls, own: dict[str, tuple[Class, str]], current: str | None, packages: frozenset[str]
) -> Calls:
    """The calls with the framework's names in the place of the file's own, and with the defaults of its own classes."""
    settings, assigned, opened, callees = dict(calls.settings), dict(calls.assigned), dict(calls.opened), calls.callees
    for name, (one, parent) in own.items():
        settings = {_renamed(key, name, parent): value for key, value in settings.items()}
        assigned = {_renamed(key, name, parent): value for key, value in assigned.items()}
        opened = {parent if key == name else key: value for key, value in opened.items()}
        callees = callees | {parent} if name in callees else callees
        for field, setting in _fields(one, current, packages).items():
            settings.setdefault(f"{parent}.{field}", msgspec.structs.replace(setting, name=f"{parent}.{field}"))
    return msgspec.structs.replace(calls, settings=settings, assigned=assigned, opened=opened, callees=callees)


def _renamed(key: str, name: str, parent: str) -> str:
    return f"{parent}.{key.partition('.')[2]}" if key.partition(".")[0] == name else key


def _fields(one: Class, current: str | None, packages: frozenset[str]) -> dict[str, Setting]:
    """The defaults of a class of the checkout, over those of the classes of the checkout that it derives from."""
    path = Path(one.path)
    node = next((each for each in parse(path).body if isinstance(each, ast.ClassDef) and each.lineno == one.line), None)
    if node is None:
        return {}
    found: dict[str, Setting] = {}
    for base in reversed(node.bases):
        of = class_named(base.id, path, current, packages) if isinstance(base, ast.Name) else None
        if of is not None and of.is_here and (of.path, of.line) != (one.path, one.line):
            found |= _fields(of, current, packages)
    start = f"{node.name}."
    declared = [statement.target.id for statement in node.body if _is_field(statement)]  # type: ignore[attr-defined]
    settings = read_calls(path).settings
    return found | {field: settings[start + field] for field in declared if start + field in settings}


def _is_field(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value is not None
    )


def _used(tree: ast.Module) -> Iterator[str]:
    """Names that the file uses otherwise than to annotate or to derive: it calls them, or gives them to a parser."""
    aside = {id(inner) for node in ast.walk(tree) for part in _aside(node) for inner in ast.walk(part)}
    for node in ast.walk(tree):
        if id(node) in aside:
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def _made_here(tree: ast.Module) -> set[str]:
    """The classes of which the file itself makes objects: those that it calls, and, where it makes a parser, those that it uses.

    A class that is only handed on, as in `build(GRPOConfig, sizes)`, is given its settings where this file does not say them.
    """
    called = {ast.unparse(node.func).rpartition(".")[2] for node in ast.walk(tree) if isinstance(node, ast.Call)}
    parsers = {name for name in called if name == "cli" or (name.endswith("Parser") and name != "ArgumentParser")}
    return called.union(_used(tree)) if parsers else called


def _aside(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.arg() | ast.AnnAssign():
            return [node.annotation] if node.annotation is not None else []
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return [node.returns] if node.returns is not None else []
        case ast.ClassDef():
            return node.bases
    return []


def given_to_trainer(tree: ast.Module, system: System) -> ast.expr | None:
    """The configuration that the first trainer of a file is given, as it is written; None where it is given none."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in system.trainers:
            given = [word.value for word in node.keywords if word.arg in _GIVEN] + node.args[_PLACE : _PLACE + 1]
            if given:
                return given[0]
    return None


def _elsewhere(tree: ast.Module, file: Path, system: System) -> UnknownText | None:
    """The configuration that a trainer is given, where nothing in the file makes one."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or ast.unparse(node.func).rpartition(".")[2] not in system.trainers:
            continue
        given = [word.value for word in node.keywords if word.arg in _GIVEN] + node.args[_PLACE : _PLACE + 1]
        opened = [word.value for word in node.keywords if word.arg is None]
        one = next(iter(given or opened), None)
        if one is not None and not (isinstance(one, ast.Constant) and one.value is None):
            shown = f"{'' if given else '**'}{ast.unparse(one)[:60]}"
            why = f"{ast.unparse(node.func)} is given {shown}, and no configuration of it is made in this file"
            return UnknownText("", why, Place(str(file), one.lineno, one.col_offset + 1))
    return None
