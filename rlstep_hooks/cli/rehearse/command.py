"""The command of a rehearsal: what the launch runs, in one process, without the launcher."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.text import LaunchError, NoLaunchError, Place, Token
from rlstep_hooks.launch.wrappers import unwrap
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.entry import named
from rlstep_hooks.systems.engine.launch_search import find_launch, one_run

if TYPE_CHECKING:
    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.planning.launched import Options
    from rlstep_hooks.rehearse.framework import Framework
    from rlstep_hooks.systems.engine.declaration import System

_LAUNCHERS = ("accelerate", "torchrun", "deepspeed")


class Runnable(msgspec.Struct, frozen=True, kw_only=True):
    """One process that can be started."""

    arguments: tuple[str, ...]
    environment: dict[str, str] = {}
    processes: int | None = None
    """Processes that the launcher would start; None if it does not say."""
    launcher: str = ""
    rehearsed_by: str
    """The place of the `Framework` that says how it is rehearsed, "module:NAME"."""


def runnable(words: list[str], options: Options) -> Runnable:
    """What a launch command runs.

    Raises:
        LaunchError: It cannot be read, is no Python program, or cannot be rehearsed.
    """
    try:
        launch = one_run(find_launch(words, options))
        command, framework, folder = launch.command, launch.framework, launch.folder
    except NoLaunchError:
        # A script that only shows itself when it runs.
        tokens = tuple(Token(word, Place("the command", 0, index)) for index, word in enumerate(words, 1))
        commands = [each for each in unwrap(tokens, {}) if each.program.kind in ("script", "module")]
        if len(commands) != 1:
            raise
        command, framework, folder = commands[0], "", Path()
    system = index.system_of(framework) if framework else _of_any_script()
    if not system.rehearsed_by:
        titles = " and ".join(each.title for each in _rehearsed())
        raise LaunchError(f"launches of {framework} cannot be rehearsed; those of {titles} can")
    how: Framework = named(system.rehearsed_by)
    if limit := how.limit(command.program.name):
        raise LaunchError(f"it cannot be rehearsed: {limit}", command.place)
    launched = command.processes
    return Runnable(
        arguments=(_python(words, how), *_program(command, folder, how), *_arguments(command, how)),
        environment={name: token.text for name, token in command.environment.items() if not token.unknown},
        processes=options.world_size or (launched.count if launched is not None else _own_processes(command)),
        launcher=launched.launcher if launched is not None else "",
        rehearsed_by=system.rehearsed_by,
    )


def _rehearsed() -> list[System]:
    return [system for system in index.observed() if system.rehearsed_by]


def _of_any_script() -> System:
    """The system of a script that none knows by its text: one whose classes people call in scripts of their own."""
    return next(system for system in _rehearsed() if any(entry.calls for entry in system.recognised))


def _program(command: Command, folder: Path, how: Framework) -> tuple[str, ...]:
    kind, name = command.program.kind, command.program.name
    if kind == "module":
        return ("-m", name)
    if kind == "script":
        path = Path(name) if Path(name).exists() else folder / name
        if not path.exists():
            raise LaunchError(f"{name} is not here", command.place)
        return (str(path.absolute()),)
    if name in how.executables:
        return ("-m", how.executables[name])
    raise LaunchError(f"{name} is no Python program that can be rehearsed", command.place)


def _arguments(command: Command, how: Framework) -> list[str]:
    tokens = [
        token
        for token in command.arguments
        if not (token.unknown and token.text.lstrip("+").startswith(how.free_settings))
    ]
    unknown = [each for token in tokens for each in token.unknown]
    if unknown:
        raise LaunchError(f"{unknown[0].why}; give it with --set", unknown[0].place)
    texts = [token.text for token in tokens]
    if command.program.kind != "executable":
        return texts
    kept: list[str] = []
    skip = False
    for text in texts:
        own = text.partition("=")[0] in how.launcher_arguments
        if not skip and not own:
            kept.append(text)
        skip = own and "=" not in text
    return kept


def _own_processes(command: Command) -> int | None:
    """`trl grpo --num_processes 8`."""
    texts = [token.text for token in command.arguments]
    if command.program.kind == "executable" and "--num_processes" in texts[:-1]:
        value = texts[texts.index("--num_processes") + 1]
        return int(value) if value.isdigit() else None
    return None


def _python(words: list[str], how: Framework) -> str:
    """The interpreter that the launch would use: the one it names, else the one beside its launcher, else this one."""
    for word in words:
        if Path(word).name.startswith("python") and (found := shutil.which(word)):
            return found
    launchers = {*_LAUNCHERS, *(name.partition(" ")[0] for name in how.executables)}
    for word in words:
        found = shutil.which(word) if os.sep in word or word in launchers else None
        if found and (python := Path(found).parent / "python").exists():
            return str(python)
    return sys.executable
