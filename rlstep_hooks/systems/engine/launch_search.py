"""Finds the one command of a launch that a system knows: among words, in a script, a configuration file or a Python file."""

from __future__ import annotations

import os.path
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.accelerate import with_config_read
from rlstep_hooks.launch.arguments import read_arguments
from rlstep_hooks.launch.checkout import find_checkout
from rlstep_hooks.launch.command import Command, Program, unwrap
from rlstep_hooks.launch.console_scripts import as_module
from rlstep_hooks.launch.files import NOTEBOOK, SCRIPTS, edited, holds_commands, is_shell_script
from rlstep_hooks.launch.inheritance import Parent
from rlstep_hooks.launch.settings import Setting
from rlstep_hooks.launch.skypilot import task_of
from rlstep_hooks.launch.text import LaunchError, NoLaunchError, Place, Token, UnknownText, UnknownValueError
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.abbreviations import spelled_out
from rlstep_hooks.systems.engine.absent import flags_of_its_own, is_absent, sizes_of_its_own
from rlstep_hooks.systems.engine.configurations import with_configurations
from rlstep_hooks.systems.engine.declaration import System
from rlstep_hooks.systems.engine.entry import named
from rlstep_hooks.systems.engine.launch_settings import (
    CONFIGS,
    keys_of,
    last_holds,
    quiet_config_keys,
    read_arguments_quietly,
    set_settings,
    settings_of_command,
    with_own_configs,
)
from rlstep_hooks.systems.engine.own_program import with_parser, with_reader
from rlstep_hooks.systems.engine.python_launch import (
    calls_of,
    differ,
    keywords_of,
    of_others,
    selected_rows,
    settings_of,
)
from rlstep_hooks.systems.engine.python_launch import hidden as hidden_of
from rlstep_hooks.systems.engine.repeated_training import (
    NOT_TAKEN,
    UNEXPECTED,
    not_taken,
    repeated,
    trainings_in,
    unexpected,
)
from rlstep_hooks.systems.engine.request import SELECTED
from rlstep_hooks.systems.engine.stoppers import STOP, stopper_in
from rlstep_hooks.systems.engine.trained_elsewhere import trained_in
from rlstep_hooks.systems.engine.trainers import Judged, only, trainers_in, whose
from rlstep_hooks.systems.engine.trains import file_of, file_of_another_machine, names_other_work, why_not

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rlstep_hooks.planning.launched import Options

_NAME_IT = (
    "name it with --framework NAME (trl, verl, openrlhf, ...; a name that is not known is answered with all of them)"
)


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """A command that a system knows, with everything it sets."""

    command: Command
    framework: str
    given: dict[str, Setting]
    source: str
    folder: Path
    notes: tuple[Note, ...] = ()
    missing: tuple[Parent, ...] = ()
    """Files that the launch names or inherits from and that are not here."""
    hidden: UnknownText | None = None
    """Values that a Python file gives to the framework's configuration and that cannot be known."""
    environment: dict[str, str] = {}
    """Variables that the command or `--set` sets, where their values are known."""
    keywords: frozenset[str] = frozenset()
    """Keywords ("Callee.keyword") that a Python file gives the framework's own classes in any run."""
    rounds: tuple[Launch, ...] = ()
    """The further runs of the same command with other settings: the further rounds of a loop, or further calls of a function."""


class _Relative(msgspec.Struct, frozen=True):
    """A relative of a system that is known from the source beside a launch."""

    system: System
    trainer_read: bool
    """Whether the very trainer that the launch makes was read, and samples as the relative's does."""

    @property
    def remedy(self) -> str:
        """What plans the launch so."""
        return f"--framework {self.system.name} plans it as {self.system.title}, whose trainer samples as this one does"


class Declined(msgspec.Struct, frozen=True):
    """A command with settings of a system that does not train with it, as far as can be known."""

    framework: str
    why: str
    place: Place
    remedy: str


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
    try:
        return _only(itself, str(path), path.parent, options)
    except NoLaunchError:
        started = _started(path, options)
        if started is None:
            raise
        return started


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


def _only(commands: list[Command], source: str, folder: Path, options: Options) -> Launch:
    """The one command that a system knows."""
    commands = [each if index.has_program(each.program) else as_module(each, folder) for each in commands]
    candidates = _candidates(commands, options.framework) if options.framework else commands
    read = [_launch_of(command, source, folder, options) for command in candidates]
    known = [launch for launch in read if isinstance(launch, Launch)]
    if options.line is not None:
        known = [launch for launch in known if launch.command.place.line == options.line]
    distinct = {(launch.command.place.line, launch.framework): launch for launch in known}
    if not known:
        tried = ", ".join(dict.fromkeys(_tried(command, folder) for command in commands if command.program.name))
        tried = tried if len(tried) <= 200 else tried[:197] + "..."
        declined = [one for one in read if isinstance(one, Declined)]
        if declined:
            raise NoLaunchError(declined[0].why, declined[0].place, remedy=declined[0].remedy)
        cut_off = "".join(f"; {command.cut_off}" for command in commands if command.cut_off)
        called = (calls_of(command, folder) for command in commands)
        others = [other for calls in called if calls is not None for other in of_others(calls)]
        if others:
            raise NoLaunchError(f"{' and '.join(others)}: a trainer that is not known here", Place(source))
        raise NoLaunchError(
            f"none of these starts a known trainer: {tried}{cut_off}" if tried else "there is no command in it",
            Place(source),
            remedy=_to_set(commands) or _NAME_IT,
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


def _launch_of(command: Command, source: str, folder: Path, options: Options) -> Launch | Declined | None:
    """A command with its settings, if a system knows it; else the reason why it is not a run of the system that has its settings."""
    set_by_user = {name: Token(value, Place("--set")) for name, value in options.variables.items()}
    command = msgspec.structs.replace(command, environment={**set_by_user, **command.environment})
    calls = calls_of(command, folder, rows=options.rows)
    file = file_of(command, folder)
    used = trainers_in(file, command.folder) if options.line is not None and calls is not None and file else []
    chosen = next((each for each in used if each.line == options.line), None) if len(used) > 1 else None
    if calls is not None and chosen is not None:
        calls = only(calls, chosen, used)
        command = msgspec.structs.replace(command, place=Place(str(file), chosen.line, 1))
    plain, _ = read_arguments(command.arguments)
    overridden, _ = read_arguments_quietly(command)
    keys = {*keys_of(plain), *keys_of(overridden)}
    if calls is not None:
        keys |= {*calls.settings, *(f"{callee}." for callee in calls.callees)}
    packages = calls.packages if calls is not None else {}
    values = {name: str(setting.value) for name, setting in overridden.items() if not setting.unknown}
    framework = options.framework or index.recognise(command, keys, values, packages)
    if framework is None and (in_config := quiet_config_keys(command, folder) - keys):
        framework = index.recognise(command, keys | in_config, values, packages)
    if framework is None:
        return _launch_elsewhere(command, source, folder, options, file)
    if options.framework is None:
        framework = _as_the_settings_say(framework, command, folder, keys, values, packages)
    if options.framework is None and options.version is None:
        framework = _as_the_trainer_says(framework, command, folder, keys, values)
    system = index.system_of(framework)
    command = with_parser(with_config_read(command, folder), file, system)
    trainings = trainings_in(file, system.trainers) if calls is not None and file and system.trainers else []
    if len(trainings) > 1 and chosen is None:
        found = [(each, calls_of(command, folder, each.calls, options.rows)) for each in trainings]
        # A trainer in a branch that this launch does not come to is none of its trainers.
        read = {each.line: one for each, one in found if one is not None and one.callees & each.calls.keys()}
        calls = read.get(options.line or next(iter(read), 0)) or calls
        if options.line in read:
            command = msgspec.structs.replace(command, place=Place(str(file), options.line, 1))
        elif differ([*read.values()], system):
            lines = ", ".join(f"line {line}" for line in read)
            why = f"it makes {len(read)} trainers, of different settings: {lines}"
            return Declined(framework, why, Place(str(file)), "choose one with --line N")
    about_trainer = Judged()
    if options.framework is None:
        if system.trainers and file is not None:
            used = [chosen] if chosen is not None else trainers_in(file, command.folder)
            about_trainer = whose(system, used)
        why = why_not(command, system, folder) or about_trainer.why_not
        if why:
            known = _relative(framework, command, folder) if about_trainer.why_not else None
            if known is not None and known.trainer_read and not why_not(command, known.system, folder):
                return _launch_of(
                    command, source, folder, msgspec.structs.replace(options, framework=known.system.name)
                )
            return Declined(
                framework,
                why,
                command.place,
                known.remedy if known is not None else f"--framework {framework} plans it all the same",
            )
        if about_trainer.several:
            names = ", ".join(str(each) for each in about_trainer.several)
            why = f"there are {len(about_trainer.several)} trainers: {names}"
            apart = len({each.line for each in about_trainer.several}) > 1
            remedy = "choose one with --line N" if apart else f"--framework {framework} plans it all the same"
            return Declined(framework, why, Place(str(file)), remedy)
    absent = is_absent(command, system, folder)
    own_flags = flags_of_its_own(command, system) if absent and options.framework is None else []
    if own_flags:
        why = (
            f"{command.program.name} is not here, and {', '.join(own_flags)}, which it is given, is none of {system.title}'s: what it"
            " makes of its flags is not known"
        )
        remedy = f"plan it where the file is, or --framework {framework} reads the other flags as {system.title}'s own"
        return Declined(framework, why, command.place, remedy)
    given, missing, notes = settings_of_command(command, system, folder)
    if options.framework is None:
        notes += _told_by(system, command, keys, values)
    notes += [
        Note("assumes", f"{array.why} ({array.place}): its contents are not in this plan") for array in command.missing
    ]
    notes += [Note("assumes", command.needs)] if command.needs else []
    notes += [Note("ignores", command.cut_off)] if command.cut_off else []
    notes += about_trainer.notes
    if absent:
        text = f"{command.program.name}, which is not here, hands its flags to {system.title} as they are named"
        notes.append(Note("assumes", text))
    if file is not None and file == file_of_another_machine(command, folder):
        here = os.path.relpath(file, folder)
        notes.append(Note("assumes", f"{command.program.name}, which is not on this machine, is {here} here"))
    hidden, keywords = None, frozenset[str]()
    if calls is not None:
        elsewhere = None
        if system.trainers and file is not None:
            configured = with_configurations(calls, file, command.folder, system)
            calls, elsewhere = configured.calls, configured.hidden
        given, more = settings_of(calls, given, system)
        notes += more
        selected = selected_rows(calls, system)
        if selected is not None and options.rows is None:
            given = {**given, SELECTED: selected}
            notes.append(
                Note(
                    "assumes",
                    f"the {selected.value} rows that the file makes or selects ({selected.place}); --rows says otherwise",
                )
            )
        hidden, keywords = hidden_of(calls, system) or elsewhere, keywords_of(calls, system)
    if file is not None and system.trainers:
        notes += [Note("assumes", text) for text in repeated(file, system.trainers)]
        keyword = unexpected(file, system.trainers) if UNEXPECTED in system.settings else None
        given = given if keyword is None else {**given, UNEXPECTED: keyword}
        keyword = not_taken(file, packages) if NOT_TAKEN in system.settings else None
        # A copy of TRL beside the launch may have a trainer of its own.
        if keyword is not None and not find_checkout("trl/trainer/grpo_trainer.py", [folder, file.parent]):
            given = {**given, NOT_TAKEN: keyword}
    stopper = stopper_in(file, command.folder) if STOP in system.settings and file is not None else None
    if stopper is not None:
        given = {**given, STOP: Setting(STOP, True, stopper.place)}
        notes.append(
            Note(
                "assumes",
                f"{stopper.name} ({stopper.place}), which the launch makes, sets control.{STOP} in the run",
            )
        )
    given, more = spelled_out(system, command, given, options.version)
    notes += more
    return Launch(
        command=command,
        framework=framework,
        given={**given, **set_settings(options.variables)},
        source=source,
        folder=folder,
        notes=tuple(notes),
        missing=missing,
        hidden=hidden,
        environment=_environment(command, options),
        keywords=keywords,
    )


def _launch_elsewhere(
    command: Command, source: str, folder: Path, options: Options, file: Path | None
) -> Launch | Declined | None:
    """A command whose program calls a function of a file beside it, which trains; None where it calls none."""
    if file is None or file.suffix != ".py" or names_other_work(command.program):
        return None
    trains = trained_in(file, command)
    if trains is None:
        return None
    found = _launch_of(
        msgspec.structs.replace(command, program=Program("script", str(trains))), source, folder, options
    )
    if not isinstance(found, Launch):
        return found
    note = Note("assumes", f"{file.name} trains by what it calls of {os.path.relpath(trains, file.parent)}")
    return msgspec.structs.replace(found, notes=(note, *found.notes))


def _relative(framework: str, command: Command, folder: Path) -> _Relative | None:
    """The relative of a system whose trainer the one beside a launch is known as; None where it is known as that of none."""
    for name in index.relatives(framework):
        system = index.system_of(name)
        if not system.checkout:
            continue
        with suppress(LaunchError):
            found = named(system.checkout)(system, command, folder, {})
            if found is not None:
                return _Relative(system, found.of_trainer)
    return None


def _as_the_settings_say(
    framework: str,
    command: Command,
    folder: Path,
    keys: Iterable[str],
    values: Mapping[str, str],
    packages: Mapping[str, str],
) -> str:
    """The system of a script: a name that anybody may give, and that the script does not bear out, gives way to its settings."""
    if command.program.kind != "script" or not why_not(command, index.system_of(framework), folder):
        return framework
    unnamed = msgspec.structs.replace(command, program=Program("script", ""))
    other = index.recognise(unnamed, keys, values, packages)
    if other is None or why_not(command, index.system_of(other), folder):
        return framework
    return other


def _as_the_trainer_says(
    framework: str, command: Command, folder: Path, keys: Iterable[str], values: Mapping[str, str]
) -> str:
    """The system of a launch: what the name of a project alone says gives way to the trainer beside it, which may be another one."""
    alike = index.told_by(framework, command, keys, values)
    system = index.system_of(framework)
    if not alike or not system.checkout:
        return framework
    given, _, _ = settings_of_command(command, system, folder)
    try:
        named(system.checkout)(system, command, folder, given)
    except LaunchError:
        others = {name: value for name, value in values.items() if name not in alike}
        return index.recognise(command, keys, others) or framework
    return framework


def _told_by(system: System, command: Command, keys: Iterable[str], values: Mapping[str, str]) -> list[Note]:
    """That the launch is taken for a fork's by nothing but the values of settings, such as the name of a project."""
    alike = index.told_by(system.name, command, keys, values)
    if not alike:
        return []
    said = " and ".join(f"{name} = {value}" for name, value in alike.items())
    text = f"{command.program.name} is taken for {system.title}'s by {said} alone; --framework names another"
    return [Note("assumes", text)]


def _environment(command: Command, options: Options) -> dict[str, str]:
    """Variables of a command whose values are known."""
    own = {name: token.text for name, token in command.environment.items() if not token.unknown}
    return own | options.variables


def _config_launch(path: Path, options: Options) -> Launch:
    """A configuration file on its own."""
    from rlstep_hooks.launch.inheritance import read_config

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
    command = Command(Program("config", str(path)), ())
    framework = options.framework or index.recognise(command, keys_of(read.settings))
    if framework is None:
        refuse_missing(read.missing)
        started = _started(path, options) if path.suffix in (".yaml", ".yml") else None
        if started is not None:
            return started
        raise NoLaunchError("no framework is known by these settings", Place(str(path)), remedy=_NAME_IT)
    system = index.system_of(framework)
    own = sizes_of_its_own(read.settings, system) if options.framework is None else []
    if own:
        raise NoLaunchError(
            f"{' and '.join(own)} in this file are none of {system.title}'s: what the program that reads it makes of them is not known",
            read.settings[own[0]].place,
            remedy=f"give the command that runs it, or --framework {framework} reads the other settings as {system.title}'s own",
        )
    command = with_reader(command, path.parent, system)
    twice = last_holds(read, system)
    given, missing, notes = with_own_configs(read.missing, read.settings, system)
    return Launch(
        command=command,
        framework=framework,
        given={**given, **set_settings(options.variables)},
        source=str(path),
        folder=path.parent,
        notes=(*twice, *notes),
        missing=missing,
        environment=dict(options.variables),
    )


def refuse_missing(missing: tuple[Parent, ...]) -> None:
    """Refuse to plan without this file: its settings are not guessed."""
    for parent in missing:
        if parent.unknown is not None:
            raise UnknownValueError(parent.what, parent.unknown)
        raise LaunchError(
            f"{parent.name} is not here, and what it sets decides the plan",
            parent.place,
            remedy="give the path under which it is, or run this where the file is",
        )
