"""Whether a program that is not one of a framework's own trains with it: its settings alone do not say so.

Scripts that generate, evaluate, serve or time a single update take the same settings as those that train.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from rlstep_hooks.launch.files import NOTEBOOK, contents, find_file, is_allowed, of_another_machine
from rlstep_hooks.launch.modules import SOURCES
from rlstep_hooks.launch.wildcards import matches
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.entry import named

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.launch.command import Command, Program
    from rlstep_hooks.systems.engine.declaration import System

OTHER_WORK = frozenset((
    "convert", "download", "eval", "evals", "evaluate", "evaluation", "export", "generate", "generation", "infer", "inference",
    "merge", "preprocess", "rollout", "serve", "server", "sft",
))  # fmt: skip
"""Words in the names of programs that take a trainer's settings and train nothing by them."""
TRAINING = frozenset(("train", "training", "trainer"))
STARTS = frozenset(("train", "fit"))
"""The methods of trainers that train: a file that only evaluates has the trainer too, and calls none of them."""

_ANYBODYS = frozenset(("examples", "playground", "recipe"))
"""Packages of programs of some systems whose names say nothing: any repository may have a folder of that name."""
_WORD = re.compile(r"[^a-z0-9]+")
_ALIKE = 3
"""Flags that a file has to know to be taken for another one of its name."""


def why_not(command: Command, system: System, folder: Path) -> str:
    """Why a command is not taken for a training run of a system that it has settings of; empty where it is.

    Args:
        command: The command.
        system: The system that its settings are known from.
        folder: The folder of the launch script.
    """
    program = command.program
    own = is_own(program, system)
    if program.kind not in ("script", "module") or (own and program.kind == "module"):
        return ""  # only the name of a script may be anybody's
    if (others := _modules_of_others(program, system)) and file_of(command, folder) is None:
        return f"{program.name} has settings of {system.title}, and is a module of {others}, of which it is no program that is known"
    if _is_of_library(program, system) and file_of(command, folder) is None:
        return f"{program.name} is a module of {system.title}, whose programs are scripts: that it trains when it is run is not known"
    words = _WORD.split(_last_part(program).lower())
    said = next((word for word in words if word in OTHER_WORK), "")
    path = _handed_file(command, folder) if _handed(command) else file_of(command, folder)
    used = _names_in(path) if path is not None and system.trains else frozenset[str]()
    trains = STARTS.intersection(used) and _uses(used, system.trains)  # a file that is here says more than its name
    if said and not TRAINING.intersection(words) and not own and not trains:
        return f'{program.name} has settings of {system.title}, but by its name ("{said}") it trains nothing'
    if path is None or not system.trains:
        return ""
    # A file on its own may be the part of a script that configures.
    enough = system.trains if command.arguments else (*system.trains, *_calls(system))
    if _uses(used, enough) or (system.reads_program and named(system.reads_program)(command, folder)):
        return ""
    name = _handed(command) or program.name
    has = "the name of a program" if own else "settings"
    wanted = ", ".join(pattern.replace("*", "...") for pattern in system.trains)
    return f"{name} has {has} of {system.title}, but uses nothing that trains with it ({wanted}): what it does is not known"


def _modules_of_others(program: Program, system: System) -> str:
    """The package that a module belongs to, where programs of other systems alone are modules of it; empty for any other."""
    package = program.name.partition(".")[0] if program.kind == "module" else ""
    if not package or package in _ANYBODYS:
        return ""
    start = f"module:{package}."
    owners = {entry.name for entry in index.entries() for each in entry.programs if each.startswith(start)}
    # A fork has the package of what it is a fork of.
    alike = {system.name, *index.relatives(system.name)}
    is_alike = not owners.isdisjoint(alike) or any(system.name in index.relatives(owner) for owner in owners)
    return package if owners and not is_alike else ""


def _is_of_library(program: Program, system: System) -> bool:
    """Whether a module is one of a framework's own package that has no programs in it."""
    return system.is_library and program.kind == "module" and program.name.partition(".")[0] == system.name


def names_other_work(program: Program) -> str:
    """The word in a program's name by which it does something else than train; empty where there is none."""
    words = _WORD.split(_last_part(program).lower())
    return "" if TRAINING.intersection(words) else next((word for word in words if word in OTHER_WORK), "")


def _names_in(path: Path) -> frozenset[str]:
    from rlstep_hooks.launch.python_source import names_in  # only where there is a file to read

    return names_in(path)


def _uses(names: frozenset[str], patterns: tuple[str, ...]) -> bool:
    return any(matches(name, pattern) for name in names for pattern in patterns)


def _calls(system: System) -> tuple[str, ...]:
    """What a Python file of a system calls."""
    return tuple(call for entry in index.entries_of(system.name) for call in entry.calls)


def is_own(program: Program, system: System) -> bool:
    """Whether the framework names this very program, not only the likes of it."""
    for entry in index.entries_of(system.name):
        for pattern in entry.programs:
            last = pattern.rpartition("." if program.kind == "module" else "/")[2]
            if "*" not in last and program.matches(pattern):
                return True
    return False


def _last_part(program: Program) -> str:
    return program.name.rpartition(".")[2] if program.kind == "module" else PurePosixPath(program.name).stem


def _handed(command: Command) -> str:
    """The Python file that a launcher module is handed ("-m areal.launcher.local train.py"): that file trains, and not the launcher."""
    first = command.arguments[0] if command.arguments else None
    launches = command.program.kind == "module" and "launcher" in command.program.name
    return first.text if launches and first is not None and first.text.endswith(".py") else ""


def _handed_file(command: Command, folder: Path) -> Path | None:
    return find_file(_handed(command), folder, command.folder)


def file_of(command: Command, folder: Path) -> Path | None:
    """The Python file of a script or module, if it is here."""
    program = command.program
    if program.kind == "module":
        return find_file(program.name.replace(".", "/") + ".py", folder, command.folder, beside=SOURCES)
    if program.kind == "script" and program.name.endswith((".py", NOTEBOOK)):
        return find_file(program.name, folder, command.folder) or file_of_another_machine(command, folder)
    return None


def file_of_another_machine(command: Command, folder: Path) -> Path | None:
    """The Python file that a script starts by an absolute path of the machine that it was written for, if it is in the repository.

    A file that has but its name in common is taken for it where it lies beside the script and knows the flags that the script gives.
    """
    program = command.program
    if program.kind != "script" or not program.name.endswith(".py"):
        return None
    found = of_another_machine(program.name, folder)
    beside = folder / PurePosixPath(program.name).name
    if found is not None or not program.name.startswith("/") or not beside.is_file() or not is_allowed(beside):
        return found
    flags = [token.text.lstrip("-").partition("=")[0] for token in command.arguments if token.text.startswith("--")]
    with suppress(OSError):
        text = contents(beside)
        known = sum(re.search(rb"\b%b\b" % re.escape(flag.encode()), text) is not None for flag in flags)
        return beside if known >= _ALIKE else None
    return None
