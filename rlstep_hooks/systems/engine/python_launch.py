"""What a Python file adds to a launch: calls of the framework's classes, helpers that make a configuration, assignments to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.arguments import read_arguments
from rlstep_hooks.launch.files import find_file
from rlstep_hooks.launch.layers import over
from rlstep_hooks.launch.python_scopes import UNNAMED
from rlstep_hooks.launch.settings import Setting
from rlstep_hooks.launch.text import Place, UnknownText
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.launch_settings import CONFIGS
from rlstep_hooks.systems.engine.request import SELECTED
from rlstep_hooks.systems.engine.trains import file_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.python_file import Calls
    from rlstep_hooks.systems.engine.declaration import System

_PARSED = "parsed."
_PARSERS = frozenset(("TrlParser", "HfArgumentParser"))
"""Parsers that read a configuration file into the framework's own classes."""


def calls_of(
    command: Command, folder: Path, only: Mapping[str, int] | None = None, rows: int | None = None
) -> Calls | None:
    """Calls in the Python file that a command runs, if it is here and no framework's own module.

    Args:
        command: The command.
        folder: The folder of the launch script.
        only: Callees of which the call in one line alone counts.
        rows: The rows of the training set, where the user gives them.
    """
    path = None if index.has_module(command.program) else file_of(command, folder)
    if path is None:
        return None
    return calls_in(path, command, folder, command.program.caller, only=only, rows=rows)


def calls_in(
    path: Path,
    command: Command,
    folder: Path,
    caller: str,
    *,
    only: Mapping[str, int] | None = None,
    rows: int | None = None,
) -> Calls:
    """Calls in a Python file that a command comes to.

    Args:
        path: The file.
        command: The command.
        folder: The folder of the launch script.
        caller: The file that is started, where that calls a function of this one; empty where this one is started.
        only: Callees of which the call in one line alone counts.
        rows: The rows of the training set, where the user gives them.
    """
    from rlstep_hooks.launch.python_file import read_calls

    return read_calls(
        path,
        flags_of(command),
        lambda name: find_file(name, folder, command.folder),
        {name: None if token.unknown else token.text for name, token in command.environment.items()},
        only,
        rows,
        caller,
    )


def flags_of(command: Command) -> dict[str, Setting]:
    """The options that a command gives its file, and its other words by the numbers of their places."""
    flags, loose = read_arguments(command.arguments)
    flags |= {str(at): Setting(str(at), word.text, word.place, unknown=word.unknown) for at, word in enumerate(loose)}
    if _has_unnamed(command):
        flags[UNNAMED] = Setting(UNNAMED, None, command.place)
    return flags


def settings_of(calls: Calls, given: Mapping[str, Setting], system: System) -> tuple[dict[str, Setting], list[Note]]:
    """The settings of a Python file. Those of the command override them, and assignments after parsing override both."""
    classes = {callee for entry in index.entries_of(system.name) for callee in entry.calls}
    merged: dict[str, Setting] = {}
    for helper in calls.callees & system.helpers.keys():
        place = Place(f"{helper} of {system.title} {system.version}")
        merged |= {name: Setting(name, value, place, name) for name, value in system.helpers[helper].items()}
    merged |= calls.settings
    # A class that the file uses, whatever it is given: one that ends the run, for example.
    merged |= {name: Setting(name, True, written=name) for name in calls.callees & system.settings.keys()}
    merged |= {
        bare: msgspec.structs.replace(setting, name=bare)
        for name, setting in calls.settings.items()
        if name.partition(".")[0] in classes and (bare := name.partition(".")[2])
    }
    # Options of the file's own reach the framework through the calls alone.
    own = calls.options if classes & calls.callees else frozenset()
    # So do the keys of a configuration file that it opens itself.
    opens = bool(own.intersection(system.config_settings)) and calls.callees.isdisjoint(_PARSERS)
    merged |= {
        name: setting
        for name, setting in given.items()
        if name not in own and not (opens and setting.place.source.endswith(CONFIGS))
    }
    notes: list[Note] = []
    evolved = {name: setting for name, setting in calls.settings.items() if name.startswith("evolve.")}
    for name, setting in (*evolved.items(), *calls.assigned.items()):
        callee, _, bare = name.partition(".")
        before = merged.get(bare)
        if name in calls.filled and before is not None and before.value is not None and not before.unknown:
            continue
        ours = (
            (callee == "evolve" and system.helpers)
            or callee in classes
            or callee in system.helpers
            or callee in system.keywords_of
        )
        if ours or (name.startswith(_PARSED) and bare in system.settings):
            last = bare.rpartition(".")[2]
            merged = {key: kept for key, kept in merged.items() if key.rpartition(".")[2] != last or key == bare}
            merged[bare] = msgspec.structs.replace(setting, name=bare)
    update = calls.settings.get("update.1") if system.helpers else None
    if update is not None and isinstance(update.value, dict) and not update.unknown:
        changed = {name: Setting(name, value, update.place, name) for name, value in update.value.items()}
        merged = over(merged, changed)
    elif update is not None:
        notes.append(
            Note(
                "assumes", f"{update.value} ({update.place}) is empty: what would be assigned there is not in this plan"
            )
        )
    if system.helpers and "evolve" in calls.opened:
        notes.append(
            Note("assumes", f"{calls.opened['evolve'].why} ({calls.opened['evolve'].place}): it changes nothing")
        )
    return merged, notes


def _has_unnamed(command: Command) -> bool:
    """Whether a command has arguments that no long flag names: which parameter of a function they are, depends on their order."""
    after_flag = False
    for token in command.arguments:
        is_flag = token.text.startswith("--")
        if not is_flag and not after_flag:
            return True
        after_flag = is_flag and "=" not in token.text
    return False


def differ(several: list[Calls], system: System) -> bool:
    """Whether the calls that several trainers of a file are made by give settings of the system different values."""
    given = [
        {
            name: None if setting.unknown else setting.value
            for name, setting in settings_of(calls, {}, system)[0].items()
            if name in system.settings
        }
        for calls in several
    ]
    return any(each != given[0] for each in given)


def hidden(calls: Calls, system: System) -> UnknownText | None:
    """An unknown part of what a call of one of the framework's configurations is given; None if all of it is known."""
    classes = {callee for entry in index.entries_of(system.name) for callee in entry.calls} | {*system.keywords_of}
    configurations = (callee for callee in calls.opened if callee in classes and not callee.endswith("Trainer"))
    return next((calls.opened[callee] for callee in configurations), None)


def selected_rows(calls: Calls, system: System) -> Setting | None:
    """The rows that a file selects for the one trainer that it makes; None where it does not say how many these are."""
    found = [
        calls.lengths[name] for trainer in system.trainers if (name := f"{trainer}.train_dataset") in calls.lengths
    ]
    if len(found) != 1 or found[0].unknown:
        return None
    return msgspec.structs.replace(found[0], name=SELECTED, written=SELECTED)


def keywords_of(calls: Calls, system: System) -> frozenset[str]:
    """Keywords that the framework's own configurations, imported from its package, are given in any run."""
    entries = index.entries_of(system.name)
    packages = {package for entry in entries for package in entry.packages}
    own = {
        callee for entry in entries for callee in entry.calls
        if not callee.endswith("Trainer") and calls.packages.get(callee) in packages
    }  # fmt: skip
    return frozenset(name for name in calls.keywords if name.partition(".")[0] in own)


def of_others(calls: Calls) -> list[str]:
    """Trainers that the file calls and nobody here plans: of other packages with the name of one that is known ("GRPOTrainer of mine"),
    and of any package by another name ("OnlineDPOTrainer of trl")."""
    known: dict[str, set[str]] = {}
    for entry in index.entries():
        for callee in entry.calls if entry.packages else ():
            known.setdefault(callee, set()).update(entry.packages)
    return [
        f"{callee} of {package if package != '.' else 'a file beside it'}"
        for callee, package in calls.packages.items()
        if callee in calls.callees
        and (package not in known[callee] if callee in known else callee.endswith("Trainer") and callee != "Trainer")
    ]
