"""Finds the one command of a launch that a system knows: among words, in a script, a configuration file or a Python file."""

from __future__ import annotations

import os.path
import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.command import Command, Program
from rlstep_hooks.launch.console_scripts import as_module
from rlstep_hooks.launch.files import NOTEBOOK, SCRIPTS, contents, edited, holds_commands, is_shell_script
from rlstep_hooks.launch.text import LaunchError, NoLaunchError, Place, Token
from rlstep_hooks.launch.wrappers import unwrap
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.command_launch import launch_of
from rlstep_hooks.systems.engine.launch import Declined, Launch
from rlstep_hooks.systems.engine.launch_settings import CONFIGS
from rlstep_hooks.systems.engine.rewritten import as_changed
from rlstep_hooks.systems.engine.trains import file_of

if TYPE_CHECKING:
    from rlstep_hooks.planning.launched import Options

_NAME_IT = (
    "name it with --framework NAME (trl, verl, openrlhf, ...; a name that is not known is answered with all of them)"
)

_DECIDE = "--set NAME=VALUE gives a variable that the condition asks for"
_MODULE = re.compile(r"^[^#'\"]*\bpython[\d.]*\s(?:[^#'\"]*\s)?-m\s+([\w.]+)")
"""A line that starts a module of Python, and is no comment and no text."""


def find_launch(words: list[str], options: Options) -> Launch:
    """The one command among the words, or in the file that they name, which a system knows.

    Raises:
        LaunchError: There is none, or there are several.
        OSError: A file cannot be read.
    """
    if not words or not any(word.strip() for word in words):
        raise LaunchError("there is no command; write `rlstep plan -- <launch command>` or `rlstep plan FILE`")
    path = Path(words[0])
    names_file = len(words) == 1 and not _is_text(words)
    if words[0].endswith(CONFIGS) and names_file:
        return _config_launch(path, options)
    if names_file and words[0].endswith((".py", NOTEBOOK)):
        return _python_launch(path, options)
    if names_file and holds_commands(words[0]) and path.is_file():
        return _only(_embedded(path, options), str(path), path.parent, options)
    commands, source, folder = _commands(words, path, options)
    return _only(commands, source, folder, options)


def _python_launch(path: Path, options: Options) -> Launch:
    """A Python file or a notebook on its own: what it trains itself, else what it starts."""
    if not path.is_file():
        raise LaunchError("there is no such file", Place(str(path)))
    itself = [Command(Program("script", str(path)), ())]
    if path.suffix == NOTEBOOK:
        return _of_notebook(path, itself, options)
    return _only(itself, str(path), path.parent, options)


def _of_notebook(path: Path, itself: list[Command], options: Options) -> Launch:
    """A notebook: what it trains itself, or what it starts, which may be a file that one of its cells writes."""
    from rlstep_hooks.launch.embedded import written_by

    written = written_by(path)
    with edited({str(path.parent / name): text for name, text in written.texts.items()}):
        commands = [*itself, *_embedded(path, options)]
        for command in commands:
            named = {command.program.name, *(token.text for token in command.arguments)} & written.several
            if named:
                raise LaunchError(
                    f"several cells write {' and '.join(sorted(named))}, with different texts: which one runs is not known",
                    Place(str(path), command.place.line, 1),
                    remedy="write the one that runs to a file and give the command that runs it",
                )
        return _only(commands, str(path), path.parent, options)


def _started(path: Path, options: Options) -> Launch | None:
    """The launch that a file starts, which is none itself; None if it starts none that is known."""
    commands = _embedded(path, options) if path.is_file() else []
    try:
        return _only(commands, str(path), path.parent, options) if commands else None
    except NoLaunchError:
        return None


def _embedded(path: Path, options: Options) -> list[Command]:
    """The commands in a file that is no shell script. A text in it that is not shell starts none."""
    from rlstep_hooks.launch.embedded import shell_in
    from rlstep_hooks.launch.shell.script import read_text

    commands: list[Command] = []
    for found in shell_in(path):
        given = {**found.variables, **options.variables}
        with suppress(LaunchError):
            commands += read_text(found.text, str(path), given=given, folder=path.parent)
    return commands


def _is_text(words: list[str]) -> bool:
    """Whether a command is given as one text, which may end with the name of a file: "python train.py --config c.yaml"."""
    # Path.is_file would raise for a launch command that is too long for a file name.
    return len(words) == 1 and any(character.isspace() for character in words[0]) and not os.path.isfile(words[0])


def _commands(words: list[str], path: Path, options: Options) -> tuple[list[Command], str, Path]:
    arguments = tuple(Token(word, Place("the command", 0, index)) for index, word in enumerate(words, 1))
    text = _is_text(words)
    is_script = words[0].endswith(SCRIPTS) and (path.is_file() or len(words) == 1)
    if not text and (is_script or is_shell_script(path)):
        return _script(path, arguments[1:], options.variables), str(path), path.parent
    if text:
        return _text(arguments[0], options.variables), "the launch command", Path()
    commands = unwrap(arguments, {}, shell=lambda token: _text(token, options.variables))
    if len(commands) == 1 and commands[0].program.kind == "executable":
        script = Path(commands[0].program.name)
        if script.is_file() and is_shell_script(script):
            values = {name: token.text for name, token in commands[0].environment.items()}
            return _script(script, commands[0].arguments, options.variables | values), str(script), script.parent
    return commands, "the launch command", Path()


def _script(path: Path, arguments: tuple[Token, ...], variables: dict[str, str]) -> list[Command]:
    # Only where there is shell to read: it takes 25 ms to load.
    from rlstep_hooks.launch.shell.script import read_script

    return read_script(path, arguments=arguments, given=variables)


def _text(token: Token, variables: dict[str, str]) -> list[Command]:
    from rlstep_hooks.launch.shell.script import read_text

    return read_text(token.text, "the command", given=variables, folder=Path())


def _only(commands: list[Command], source: str, folder: Path, options: Options, *, itself: bool = True) -> Launch:
    """The one command that a system knows, or that a program of theirs starts; `itself` says that programs are looked into."""
    commands = [each if index.has_program(each.program) else as_module(each, folder) for each in commands]
    candidates = _candidates(commands, options.framework) if options.framework else commands
    read = [as_changed(command, folder, partial(launch_of, command, source, folder, options)) for command in candidates]
    every = tuple(commands)
    known = [msgspec.structs.replace(launch, others=every) for launch in read if isinstance(launch, Launch)]
    if options.line is not None:
        known = [launch for launch in known if launch.command.place.line == options.line]
    distinct = {(launch.command.place.line, launch.framework): launch for launch in known}
    if not known:
        tried = ", ".join(dict.fromkeys(_tried(command, folder) for command in commands if command.program.name))
        tried = tried if len(tried) <= 200 else tried[:197] + "..."
        declined = [one for one in read if isinstance(one, Declined)]
        looks_into = itself and (not declined or len(commands) == 1)
        started = _started_by_programs(commands, source, folder, options) if looks_into else None
        if started is not None:
            return started
        if declined:
            raise NoLaunchError(declined[0].why, declined[0].place, remedy=declined[0].remedy)
        cut_off = "".join(f"; {command.cut_off}" for command in commands if command.cut_off)
        others = _trainers_of_others(commands, folder)
        if others:
            raise NoLaunchError(f"{' and '.join(others)}: a trainer that is not known here", Place(source))
        passed_by = _passed_by(Path(source))
        raise NoLaunchError(
            f"none of these starts a known trainer: {tried}{cut_off}{passed_by}"
            if tried
            else "there is no command in it",
            Place(source),
            remedy=_to_set(commands) or (_DECIDE if passed_by else _NAME_IT),
        )
    if len(distinct) > 1 and len({_as_written(launch) for launch in known}) == 1:
        lines = " and ".join(str(line) for line, _ in distinct)
        note = Note("assumes", f"the commands of lines {lines} are the same: this is the plan of each")
        return msgspec.structs.replace(known[0], notes=(note, *known[0].notes))
    if len(distinct) > 1:
        lines = ", ".join(f"line {line} ({framework})" for line, framework in distinct)
        raise LaunchError(
            f"there are {len(distinct)} training commands: {lines}; choose one with --line N", Place(source)
        )
    if any(launch.given != known[0].given for launch in known):
        return msgspec.structs.replace(known[0], rounds=tuple(known[1:]))
    return known[0]


def _started_by_programs(commands: list[Command], source: str, folder: Path, options: Options) -> Launch | None:
    """The launch that the Python files of commands start; None where they start none that is known."""
    from rlstep_hooks.systems.engine.started_by import started_by  # only where there are such files to read

    files = [(command, file_of(command, folder)) for command in commands]
    found = [
        each
        for command, file in files
        if file is not None and file.suffix == ".py" and not index.has_program(command.program)
        for each in started_by(command, file, folder, options.variables)
    ]
    try:
        return _only(found, source, folder, options, itself=False) if found else None
    except NoLaunchError:
        return None


def _trainers_of_others(commands: list[Command], folder: Path) -> list[str]:
    """The trainers that the Python files of commands call and nobody here plans."""
    from rlstep_hooks.systems.engine.python_launch import calls_of, of_others

    called = (calls_of(command, folder) for command in commands)
    return [other for calls in called if calls is not None for other in of_others(calls)]


def _as_written(launch: Launch) -> tuple[object, ...]:
    """A launch without the lines of its script, so that two branches that start the same are told from two launches."""
    command = launch.command
    processes = command.processes
    return (
        launch.framework,
        command.program,
        tuple(token.text for token in command.arguments),
        tuple((name, token.text) for name, token in command.environment.items()),
        None if processes is None else (processes.count, processes.launcher, processes.config, processes.distributed),
    )


def one_run(launch: Launch) -> Launch:
    """A launch whose command runs once.

    Raises:
        LaunchError: It runs several times, with different settings.
    """
    if launch.rounds:
        raise differing_rounds(launch)
    return launch


def differing_rounds(launch: Launch) -> LaunchError:
    """The question which of several runs of one command is meant."""
    line = launch.command.place.line
    differing = {
        name
        for each in launch.rounds
        for name in launch.given.keys() | each.given.keys()
        if launch.given.get(name) != each.given.get(name)
    }
    names = ", ".join(sorted(differing)[:3]) + (f" and {len(differing) - 3} more" if len(differing) > 3 else "")
    loops = launch.command.loops
    given = " ".join(f"--set {name}={value}" for name, value in loops.items())
    return LaunchError(
        f"the command runs {len(launch.rounds) + 1} times{' in a loop' if loops else ''}, with different settings ({names})",
        Place(launch.source, line, 1),
        remedy=f"{given} plans the first of these runs"
        if given
        else "give the command of one of these runs as it is run",
    )


def _to_set(commands: list[Command]) -> str:
    """How a user says which programs run that only the run knows; empty where there are none, or where nothing can be set."""
    names = dict.fromkeys(each.name for command in commands for each in command.unknown if each.name)
    if not names:
        return ""
    given = " ".join(f"--set {name}=..." for name in names)
    return f"which program {' and '.join(f'${name}' for name in names)} is, only the run knows: {given} says it"


def _passed_by(script: Path) -> str:
    """The first line of a script that starts a program of some system although the script does not come to it; empty without one."""
    if not script.name.endswith(SCRIPTS) or not script.is_file():
        return ""
    for number, line in enumerate(contents(script).decode(errors="replace").splitlines(), 1):
        found = _MODULE.search(line)
        if found is not None and index.has_module(Program("module", found[1])):
            return (
                f"; line {number} starts {found[1]}, but the script does not come to it: a condition before it does not hold, or"
                " nothing calls the function around it"
            )
    return ""


def _tried(command: Command, folder: Path) -> str:
    """A command's program, in a message; a Python file that is not here could not be looked into."""
    name = command.program.name
    absent = command.program.kind == "script" and name.endswith(".py") and file_of(command, folder) is None
    return f"{name} (not here)" if absent else name


def _candidates(commands: list[Command], framework: str) -> list[Command]:
    """Commands that may be a launch of the framework that the user named: its own programs, else Python programs, else all commands."""
    index.system_of(framework)
    patterns = [pattern for entry in index.entries_of(framework) for pattern in entry.programs]
    own = [command for command in commands if any(command.program.matches(pattern) for pattern in patterns)]
    return own or [command for command in commands if command.program.kind in ("module", "script")] or commands


def _config_launch(path: Path, options: Options) -> Launch:
    """A configuration file on its own: a launch of the system that its settings are known from, or what it starts."""
    from rlstep_hooks.launch.inheritance import read_config
    from rlstep_hooks.launch.skypilot import task_of
    from rlstep_hooks.systems.engine.config_launch import launch_of_config

    if not path.is_file():
        raise LaunchError("there is no such file", Place(str(path)))
    try:
        read = read_config(path)
    except LaunchError:  # several documents, or a list, of which one starts a launch
        started = None if options.framework else _started(path, options)
        if started is None:
            raise
        return started
    task = task_of(read.settings)
    if task is not None:
        from rlstep_hooks.launch.shell.script import read_text

        commands = read_text(task.text, str(path), given={**task.variables, **options.variables}, folder=path.parent)
        return _only(commands, str(path), path.parent, options)
    known = launch_of_config(path, read, options)
    if known is None and path.suffix in (".yaml", ".yml"):
        known = _started(path, options)
    if known is None:
        raise NoLaunchError("no framework is known by these settings", Place(str(path)), remedy=_NAME_IT)
    return known
