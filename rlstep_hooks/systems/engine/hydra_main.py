"""Which YAML file the program of a launch hands to Hydra: the words of its decorator `@hydra.main`, parsed and never run.

The folder may be a text, which is below that of the program, or a constant that is made of `__file__`, which may be imported.
"""

from __future__ import annotations

import ast
import os.path
from pathlib import PurePosixPath

import msgspec

from rlstep_hooks.launch.checkout import Checkout

_FURTHEST = 4
"""Imports that are followed from a constant."""


class HydraMain(msgspec.Struct, frozen=True):
    """The configuration that a program names."""

    folder: str
    """The folder, from the same place as the path of the program."""
    name: str
    """The file, which may lack its `.yaml`."""


class _File(msgspec.Struct, frozen=True):
    """A Python file, or what stands above a line of it."""

    checkout: Checkout
    path: str
    body: list[ast.stmt]
    imported: int = 0
    """The imports that led to it."""


def hydra_main(checkout: Checkout, program: str) -> HydraMain | None:
    """The configuration that a program names; None where it names none, or nobody can tell which.

    Args:
        checkout: Where the program lies.
        program: Its path there.
    """
    file = _file(checkout, program)
    for node in file.body if file is not None else ():
        for call in node.decorator_list if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ():
            if file is not None and isinstance(call, ast.Call) and ast.unparse(call.func) == "hydra.main":
                return _named(call, file)
    return None


def _file(checkout: Checkout, path: str, imported: int = 0) -> _File | None:
    source = checkout.source(path)
    tree = source.tree() if source is not None else None
    return _File(checkout, path, tree.body, imported) if tree is not None else None


def _named(call: ast.Call, file: _File) -> HydraMain | None:
    words = {word.arg: word.value for word in call.keywords}
    path, name = words.get("config_path"), words.get("config_name")
    if path is None or not isinstance(name, ast.Constant) or not isinstance(name.value, str):
        return None
    if isinstance(path, ast.Constant) and isinstance(path.value, str):
        return HydraMain(os.path.join(os.path.dirname(file.path), path.value), name.value)
    folder = _path(path, file)
    return HydraMain(folder, name.value) if folder is not None else None


def _path(node: ast.expr, file: _File) -> str | None:
    """The path that an expression on `__file__` stands for; None for any other expression."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.Name(id="__file__"):
            return file.path
        case ast.Name(id=name):
            return _constant(name, file)
        case ast.Attribute(value=inner, attr="parent"):
            above = _path(inner, file)
            return os.path.dirname(above) if above is not None else None
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _joined([left, right], file)
        case ast.Call(func=ast.Attribute(value=inner, attr="resolve" | "absolute"), args=[]):
            return _path(inner, file)
        case ast.Call(func=function, args=arguments):
            return _called(ast.unparse(function), arguments, file)
    return None


def _called(function: str, arguments: list[ast.expr], file: _File) -> str | None:
    if function == "os.path.join":
        return _joined(arguments, file)
    inner = _path(arguments[0], file) if len(arguments) == 1 else None
    if inner is None:
        return None
    if function == "os.path.dirname":
        return os.path.dirname(inner)
    return inner if function in ("str", "Path", "pathlib.Path", "os.path.abspath", "os.path.realpath") else None


def _joined(parts: list[ast.expr], file: _File) -> str | None:
    found = [_path(part, file) for part in parts]
    known = [part for part in found if part is not None]
    return os.path.join(*known) if known and len(known) == len(found) else None


def _constant(name: str, file: _File) -> str | None:
    """The path that a name of a file stands for, where it is set or imported once."""
    setting = [(at, node) for at, node in enumerate(file.body) if _sets(node, name)]
    if len(setting) != 1:
        return None
    at, node = setting[0]
    if isinstance(node, ast.Assign):
        # Only what stands above a constant is part of it.
        return _path(node.value, msgspec.structs.replace(file, body=file.body[:at]))
    if not isinstance(node, ast.ImportFrom) or node.level or not node.module or file.imported >= _FURTHEST:
        return None
    module = f"{node.module.replace('.', '/')}.py"
    # Paths are those below the repository, or below the package.
    below = [str(folder / module) for folder in PurePosixPath(file.path).parents]
    places = (*below, module.removeprefix(f"{file.checkout.package.name}/"))
    found = next((each for place in places if (each := _file(file.checkout, place, file.imported + 1))), None)
    return _constant(name, found) if found is not None else None


def _sets(node: ast.stmt, name: str) -> bool:
    """Whether a statement sets a name, or imports it under its own name."""
    if isinstance(node, ast.ImportFrom):
        return any(alias.name == name and alias.asname in (None, name) for alias in node.names)
    targets = node.targets if isinstance(node, ast.Assign) else ()
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)
