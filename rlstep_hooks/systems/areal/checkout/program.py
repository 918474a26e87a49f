"""The program of AReaL beside a launch: the dataclass that its settings are merged into, and the workflow that makes its episodes.

A configuration file names no program. It is taken for one of those in its own folder, and only what all of them say counts.
"""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.checkout import Checkout, Line, Source
from rlstep_hooks.launch.files import find_file
from rlstep_hooks.launch.structured import owner_without
from rlstep_hooks.systems.engine.trains import file_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting

_LOADS = "load_expr_config"
"""The function of areal/api/cli_args.py that merges a file and overrides into a dataclass."""
_REMOVED = re.compile(r"^_LEGACY_\w+_KEYS = (\{.*?\})", re.MULTILINE | re.DOTALL)
"""Keys that its `_migrate_legacy_...` refuses below these sections, whatever the dataclass has."""
_REMOVED_FROM = ("actor", "teacher")
_MOST_PROGRAMS = 40


class Program(msgspec.Struct, frozen=True):
    """A program that trains with AReaL."""

    file: Path
    configuration: str
    """The dataclass of all settings; empty where the program does not name it."""
    workflow: Line | None
    """The workflow that it trains with, where that is not one of the package's."""


def programs_of(command: Command, folder: Path, root: Path) -> list[Program]:
    """The program of a launch, or those that a configuration file on its own may belong to.

    Args:
        command: The launch.
        folder: The folder that it lies in.
        root: The root of the repository.
    """
    if command.program.kind == "config":
        files = sorted(folder.glob("*.py"))[:_MOST_PROGRAMS]
    else:
        handed = next((token.text for token in command.arguments[:1] if token.text.endswith(".py")), "")
        found = find_file(handed, folder, command.folder) or file_of(command, folder)
        files = [found] if found is not None else []
    return [program for file in files if (program := _program(file, root)) is not None]


def _program(file: Path, root: Path) -> Program | None:
    source = Checkout(file.resolve().parent, root.resolve()).source(file.name)
    tree = source.tree() if source is not None and _LOADS in source.text else None
    if source is None or tree is None:
        return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    given = [word.value for call in calls for word in call.keywords if word.arg == "workflow"]
    if not given:
        return None
    loads = [call for call in calls if ast.unparse(call.func).rpartition(".")[2] == _LOADS]
    classes = {argument.id for call in loads for argument in call.args[1:] if isinstance(argument, ast.Name)}
    return Program(file, classes.pop() if len(classes) == 1 else "", _of_its_own(given, tree, source))


def _of_its_own(given: Sequence[ast.expr], tree: ast.Module, source: Source) -> Line | None:
    for value in given:
        name = _named(value, tree, Path(source.shown).stem)
        if name and not name.startswith("areal."):
            return Line(name, source.at(value.lineno))
    return None


def _named(value: ast.expr, tree: ast.Module, module: str) -> str:
    """The class that a value names or is made of, with its module; empty where that is not clear."""
    match value:
        case ast.Constant(value=str() as name):
            return name
        case ast.Call(func=function):
            return _named(function, tree, module)
        case ast.Name(id=name):
            found = set(_meant(name, tree, module))
            return found.pop() if len(found) == 1 else ""
    return ""


def _meant(name: str, tree: ast.Module, module: str) -> Iterator[str]:
    """What a name of a program may stand for."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str() as origin, names=names):
                yield from (f"{origin}.{each.name}" for each in names if (each.asname or each.name) == name)
            case ast.ClassDef(name=own) if own == name:
                yield f"{module}.{name}"
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                # A name that stands for itself says nothing.
                yield _named(value, tree, module) if name not in ast.unparse(value) else ""


def refused(
    command: Command, programs: Sequence[Program], arguments: Source | None, given: Mapping[str, Setting]
) -> dict[str, str]:
    """The settings that end the run at once, each with the words in which they do.

    Args:
        command: The launch.
        programs: The programs that it may be.
        arguments: The package's api/cli_args.py.
        given: What the launch sets.
    """
    found = _REMOVED.search(arguments.text) if arguments is not None else None
    removed: set[str] = set()
    with suppress(ValueError, SyntaxError):
        removed = ast.literal_eval(found[1]) if found is not None else removed
    words: dict[str, str] = {}
    for name in _written(command, given):
        section, _, last = name.partition(".")
        if section in _REMOVED_FROM and last in removed:
            words[name] = f"ValueError: Found removed config key(s) {{'{last}'}} under '{section}'."
            continue
        lacking = [_lacks(each, name) for each in programs]
        if (first := next(iter(lacking), None)) is not None and None not in lacking:
            owner, key = first
            said = f"ConfigKeyError: Key '{key.rpartition('.')[2]}' not in '{owner}' (full_key: {key})"
            # A section that is none of the dataclass's is named once, whatever is below it.
            words |= {name: said} if said not in words.values() else {}
    return words


def _lacks(program: Program, name: str) -> tuple[str, str] | None:
    """The dataclass that has no such setting, and the first part of its name that is missing there; None where it has it, or may."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1 if program.configuration else 0):
        key = ".".join(parts[:end])
        owner = owner_without(key, program.configuration, program.file)
        if owner is not None:
            return owner, key
    return None


def _written(command: Command, given: Mapping[str, Setting]) -> list[str]:
    """The settings that are merged into the dataclass: those of a configuration file and the overrides of a command."""
    handed = {token.place for token in command.arguments}
    return [
        name
        for name, setting in given.items()
        if (setting.place in handed or setting.place.source.endswith((".yaml", ".yml")))
        and not (setting.written.startswith("-") or setting.deleted or "@" in name)
        and name.partition(".")[0] not in ("hydra", "defaults")
    ]
