"""The file beside a program that trains for it: the program calls a function of that file, which makes the trainer.

Only calls are followed: a file that imports a class of such a file, to evaluate or to prepare data, trains nothing by it.
"""

from __future__ import annotations

import ast
from contextlib import suppress
from typing import TYPE_CHECKING

from rlstep_hooks.launch.modules import find_import
from rlstep_hooks.launch.python_imports import imported_once
from rlstep_hooks.launch.python_source import parse, text_of
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.systems.engine import index

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from rlstep_hooks.launch.command import Command

_FURTHEST = 4
"""Files up to which calls are followed from one to the next."""
_PARSERS = (b"argv", b"argparse", b"ArgumentParser", b"parse_args", b"click", b"fire", b"hydra", b"typer", b"tyro")
"""Words of programs that take flags: what they make of one is handed to the function that trains, and is not followed."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def trained_in(program: Path, command: Command) -> Path | None:
    """The one file beside a program in which the functions that it calls make a known trainer; None where there is none, or several.

    Args:
        program: The Python file of the launch, which makes none itself.
        command: The launch. Flags that the program itself takes are not followed.
    """
    search = _Search()
    with suppress(LaunchError, OSError):
        if command.arguments and any(word in text_of(program) for word in _PARSERS):
            return None
        search.follow(program, parse(program), 0)
    search.found.discard(program)
    return next(iter(search.found)) if len(search.found) == 1 else None


class _Search:
    def __init__(self) -> None:
        self.found: set[Path] = set()
        self._seen: set[tuple[Path, int]] = set()

    def follow(self, path: Path, node: ast.AST, depth: int) -> None:
        """Follow the calls within a file, or within a function or a class of it."""
        line = getattr(node, "lineno", 0)
        if depth > _FURTHEST or (path, line) in self._seen:
            return
        self._seen.add((path, line))
        tree = parse(path)
        imports = dict(imported_once(tree))
        own = {each.name: each for each in tree.body if isinstance(each, _Definition)}
        if isinstance(node, ast.ClassDef):
            self._bases(path, node, own, imports, depth)
        for name, member in _called(node):
            if name in own:
                self.follow(path, own[name], depth)
            elif name in imports:
                self._import(path, *imports[name], member, depth)

    def _bases(
        self,
        path: Path,
        derived: ast.ClassDef,
        own: Mapping[str, _Definition],
        imports: Mapping[str, tuple[ast.Import | ast.ImportFrom, ast.alias]],
        depth: int,
    ) -> None:
        """Follow the classes that a class derives from, where it leaves all that they do themselves as it is."""
        for base in derived.bases:
            name = base.id if isinstance(base, ast.Name) else ""
            found, file = own.get(name), path
            statement, alias = imports.get(name, (None, None))
            if isinstance(statement, ast.ImportFrom) and alias is not None:
                above = find_import(statement.module or "", path.parent, level=statement.level)
                with suppress(LaunchError, OSError):
                    there = parse(above).body if above is not None else []
                    found = next(
                        (each for each in there if isinstance(each, ast.ClassDef) and each.name == alias.name), None
                    )
                    file = above or path
            if isinstance(found, ast.ClassDef) and _only_adds(derived, found):
                self.follow(file, found, depth + 1)

    def _import(
        self, path: Path, statement: ast.Import | ast.ImportFrom, alias: ast.alias, member: str, depth: int
    ) -> None:
        if isinstance(statement, ast.ImportFrom):
            module, name = statement.module or "", alias.name
            if name in _trainers() and module.partition(".")[0] in _trainers()[name]:
                self.found.add(path)
                return
            file = find_import(f"{module}.{name}".lstrip("."), path.parent, level=statement.level) if member else None
            name = member if file is not None else name
            file = file or find_import(module, path.parent, level=statement.level)
        else:
            if member in _trainers() and alias.name.partition(".")[0] in _trainers()[member]:
                self.found.add(path)
                return
            name, file = member, find_import(alias.name, path.parent)
        if file is None:
            return
        with suppress(LaunchError, OSError):
            node = next(
                (each for each in parse(file).body if isinstance(each, _Definition) and each.name == name), None
            )
            if node is not None:
                self.follow(file, node, depth + 1)
            elif name in (imports := dict(imported_once(parse(file)))) and depth < _FURTHEST:  # a package hands it on
                self._import(file, *imports[name], "", depth + 1)


def _only_adds(derived: ast.ClassDef, base: ast.ClassDef) -> bool:
    """Whether a class sets nothing of its objects, and writes no method that the class which it derives from has a body for."""
    sets = (node for node in ast.walk(derived) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    done = {each.name for each in base.body if isinstance(each, _Function) and not all(map(_is_nothing, each.body))}
    done |= {node.id for each in base.body for node in ast.walk(each) if isinstance(each, ast.Assign | ast.AnnAssign)
             and isinstance(node, ast.Name)}  # fmt: skip
    named = {each.name for each in derived.body if isinstance(each, _Function)}
    named |= {node.id for each in derived.body for node in ast.walk(each) if isinstance(each, ast.Assign | ast.AnnAssign)
              and isinstance(node, ast.Name)}  # fmt: skip
    return next(sets, None) is None and named.isdisjoint(done)


def _is_nothing(node: ast.stmt) -> bool:
    """Whether a statement of a method says that a class which derives from this one has to write it."""
    return isinstance(node, ast.Pass | ast.Raise) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )


def _called(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that are called within a node: ("train", ""), or ("module", "train") of `module.train()`."""
    for inner in ast.walk(node):
        match inner:
            case ast.Call(func=ast.Name(id=name)):
                yield name, ""
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=member)):
                yield name, member


def _trainers() -> dict[str, frozenset[str]]:
    """The trainers and algorithms that are known, with the packages that they are imported from."""
    return {
        call: frozenset(entry.packages)
        for entry in index.entries()
        for call in entry.calls
        if entry.packages and not call.endswith(("Config", "Arguments", "Args"))
    }
