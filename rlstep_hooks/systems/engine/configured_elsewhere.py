"""A trainer's configuration that a function of another file makes: `config = make_config()` after `from sizes import make_config`."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.modules import find_import
from rlstep_hooks.launch.python_source import parse
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.configurations import given_to_trainer

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.launch.python_file import Calls
    from rlstep_hooks.systems.engine.declaration import System


class _Elsewhere(msgspec.Struct, frozen=True):
    """Where the configuration is made."""

    file: Path
    callee: str
    """The framework's class that the function makes one of."""


def with_made_elsewhere(calls: Calls, file: Path, system: System, read: Callable[[Path], Calls]) -> Calls | None:
    """The calls of a file with those settings that a function of another file gives the trainer's configuration.

    Args:
        calls: The calls of the file.
        file: The file.
        system: The system whose trainer it uses.
        read: The calls of another file, of which this one calls a function.

    Returns:
        None where no function of another file makes the configuration, or where this file may change it.
    """
    found = _found(parse(file), file, system)
    if found is None:
        return None
    other = read(found.file)
    start = f"{found.callee}."
    if found.callee in other.opened or any(name.startswith(start) for name in other.assigned):
        return None
    made = {name: setting for name, setting in other.settings.items() if name.startswith(start)}
    return msgspec.structs.replace(calls, settings={**made, **calls.settings}, callees=calls.callees | {found.callee})


def _found(tree: ast.Module, file: Path, system: System) -> _Elsewhere | None:
    given = given_to_trainer(tree, system)
    name = given.id if isinstance(given, ast.Name) else ""
    stores = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name and _is_stored(node)]
    made = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and node.targets[0] in stores]
    if len(stores) != 1 or len(made) != 1 or _is_changed(tree, name):
        return None
    match made[0].value:
        case ast.Call(func=ast.Name(id=function)):
            other = _imported_from(tree, file, function)
        case _:
            return None
    classes = {callee for entry in index.entries_of(system.name) for callee in entry.calls if callee.endswith("Config")}
    callee = _made_by(parse(other), function) if other is not None else None
    return _Elsewhere(other, callee) if other is not None and callee in classes and callee else None


def _is_stored(name: ast.Name) -> bool:
    return not isinstance(name.ctx, ast.Load)


def _is_changed(tree: ast.AST, name: str) -> bool:
    """Whether something may change what a name holds: it sets an attribute, or hands it to anything but a trainer."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=of)) if of == name and not isinstance(node.ctx, ast.Load):
                return True
            case ast.Call(func=callee, args=given, keywords=words):
                handed = [*given, *(word.value for word in words)]
                only_takes = ast.unparse(callee).endswith("Trainer") or ast.unparse(callee) == "print"
                if not only_takes and any(isinstance(one, ast.Name) and one.id == name for one in handed):
                    return True
    return False


def _imported_from(tree: ast.Module, file: Path, function: str) -> Path | None:
    """The file of the one import of a function by its own name."""
    imports = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and any((each.asname or each.name) == function for each in node.names)
    ]
    if len(imports) != 1 or any(each.name != function for each in imports[0].names if each.asname == function):
        return None
    return find_import(imports[0].module or "", file.parent, level=imports[0].level)


def _made_by(tree: ast.Module, function: str) -> str | None:
    """The class of which a function gives back a new object at its only `return`; None where it may change the object first."""
    made = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
    if len(made) != 1 or made[0].decorator_list:
        return None
    results = [node.value for node in ast.walk(made[0]) if isinstance(node, ast.Return)]
    result = results[0] if len(results) == 1 else None
    if isinstance(result, ast.Name) and not _is_changed(made[0], result.id):
        name = result.id
        bound = [
            node for node in ast.walk(made[0]) if isinstance(node, ast.Name) and node.id == name and _is_stored(node)
        ]
        values = [node.value for node in made[0].body if isinstance(node, ast.Assign) and node.targets[0] in bound]
        result = values[0] if len(bound) == len(values) == 1 else None
    if not isinstance(result, ast.Call) or not isinstance(result.func, ast.Name):
        return None
    callee = result.func.id
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == callee]
    return callee if len(calls) == 1 else None
