"""A launch as the user gives it -> Plan: find the command, recognise the system, gather the settings, and plan with them."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.arguments import canonical, choices_of, read_arguments
from rlstep_hooks.launch.command import Command, Program, unwrap
from rlstep_hooks.launch.files import find_file
from rlstep_hooks.launch.inheritance import Parent
from rlstep_hooks.launch.settings import Setting, Settings
from rlstep_hooks.launch.skypilot import task_of
from rlstep_hooks.launch.text import NOWHERE, LaunchError, NoLaunchError, Place, Token, UnknownText, UnknownValueError
from rlstep_hooks.planning.counting import TooManyError
from rlstep_hooks.planning.formula import FormulaError
from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.planning.reading import Note, Reading
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems import index
from rlstep_hooks.systems.keys import key_list
from rlstep_hooks.systems.observed_live import not_observed
from rlstep_hooks.systems.partial import ask_for_processes, one_process, what_is_meant
from rlstep_hooks.systems.python_launch import calls_of, of_others, settings_of
from rlstep_hooks.systems.python_launch import hidden as hidden_of
from rlstep_hooks.systems.reader import read
from rlstep_hooks.systems.release import accepted_by_others, looked_at, release_for
from rlstep_hooks.systems.request import Request
from rlstep_hooks.systems.trains import why_not

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from rlstep_hooks.systems.declaration import Keys, System

SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
CONFIGS = (".yaml", ".yml", ".toml")
_HYDRA = ("config_name", "config_path", "config_dir", "cn", "cp")
"""Flags of Hydra that say where the configuration is."""


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


class Declined(msgspec.Struct, frozen=True):
    """A command with settings of a system that does not train with it, as far as can be known."""

    framework: str
    why: str
    place: Place


def plan_launch(words: list[str], options: Options | None = None) -> Plan:
    """The plan of a launch command, a script, a configuration file or a Python file.

    Args:
        words: The command's words, or one path.
        options: What completes or overrides it.

    Raises:
        LaunchError: It cannot be read; the message says where and why.
        OSError: A file cannot be read.
    """
    options = options or Options()
    launch = find_launch(words, options)
    return plan_of(launch, options)


def plan_of(launch: Launch, options: Options) -> Plan:
    """The plan of a recognised launch.

    Raises:
        LaunchError: A setting is missing, unknown or impossible.
    """
    from rlstep_hooks.judge.rules.plan_checks import check_plan, refused

    system = index.system_of(launch.framework)
    release = release_for(system, launch.command, launch.given, options.version)
    request = request_of(launch, system, release.version, options)
    settings = request.settings
    plan = Plan(
        framework=system.name,
        title=system.title,
        version=release.version,
        source=launch.source,
        schedule=None,
        foreign=release.foreign,
        notes=(*launch.notes, *release.notes, *not_observed(system, request)),
    )
    others = _other_calls(launch.given.values(), system)
    try:
        reading = _read(system, request)
    except PlanError as refusal:
        ask_for_processes(system, request, refusal, _read)
        finding = refused(refusal, system.title)
        plan = msgspec.structs.replace(plan, findings=(*release.findings, finding))
        if options.version is None:
            said = accepted_by_others(system, lambda each: _read(system, request_of(launch, system, each, options)))
            plan = msgspec.structs.replace(plan, notes=(*plan.notes, *said))
        if (meant := what_is_meant(system, request, _read)) is not None:
            plan = msgspec.structs.replace(
                plan,
                meant=meant.schedule,
                formulas=meant.formulas,
                notes=(*plan.notes, *meant.notes),
            )
    else:
        misspelt = _misspelt(settings, (*release.refused, *release.foreign, *others), known_by=system.keys)
        plan = msgspec.structs.replace(
            plan,
            schedule=reading.schedule,
            formulas=reading.formulas,
            notes=(
                *plan.notes,
                *one_process(system, request, _read),
                *reading.notes,
                *_assumed(settings),
                *misspelt,
            ),
            findings=(*release.findings, *check_plan(reading)),
        )
    elsewhere = {*release.refused, *others, *(_HYDRA if system.overrides else ())}
    unused = tuple(setting for setting in settings.unused if setting.name not in elsewhere)
    return msgspec.structs.replace(plan, unused=unused, no_effect=tuple(looked_at(system.keys, unused)))


def planned_again(launch: Launch, plan: Plan, options: Options) -> Plan:
    """The plan of a launch of which only values of settings were changed: what the names mean stays as it was found.

    Args:
        launch: The changed launch.
        plan: The plan of the launch before.
        options: What completes it.

    Raises:
        PlanError: The framework itself refuses it.
        LaunchError: A setting is missing, unknown or impossible.
    """
    from rlstep_hooks.judge.rules.plan_checks import check_plan

    system = index.system_of(launch.framework)
    release = release_for(system, launch.command, launch.given, plan.version)
    reading = _read(system, request_of(launch, system, release.version, options))
    return msgspec.structs.replace(
        plan,
        schedule=reading.schedule,
        meant=None,
        formulas=reading.formulas,
        notes=reading.notes,
        findings=(*release.findings, *check_plan(reading)),
    )


def _other_calls(given: Iterable[Setting], system: System) -> set[str]:
    """Keywords of calls in a Python file that configure something else, such as `add_argument(help=...)`; they are not reported as
    unused."""
    own = {call for entry in index.entries_of(system.name) for call in entry.calls} | set(system.keywords_of)
    calls = (setting for setting in given if setting.place.source.endswith(".py") and "." in setting.name)
    return {setting.name for setting in calls if setting.name.partition(".")[0] not in own}


def _assumed(settings: Settings) -> list[Note]:
    return [Note("assumes", assumption) for assumption in settings.assumed]


def _misspelt(settings: Settings, refused: tuple[str, ...], *, known_by: Keys | None) -> list[Note]:
    """Notes on unused settings that resemble one that the plan reads, except settings that the framework has or is said to refuse."""
    known = key_list(known_by.file) if known_by is not None else None
    return [
        Note("ignores", f"{setting} at {setting.place} is not read; did you mean {other}?")
        for setting, other in settings.look_alikes()
        if setting.name not in refused and (known is None or not known.ever(setting.name))
    ]


# Finding the command.


def find_launch(words: list[str], options: Options) -> Launch:
    """The one command among the words, or in the file that they name, which a system knows.

    Raises:
        LaunchError: There is none, or there are several.
        OSError: A file cannot be read.
    """
    if not words or not any(word.strip() for word in words):
        raise LaunchError("there is no command; write `rlstep plan -- <launch command>` or `rlstep plan FILE`")
    path = Path(words[0])
    if words[0].endswith(CONFIGS) and len(words) == 1:
        return _config_launch(path, options)
    if words[0].endswith(".py") and len(words) == 1:
        program = Program("script", words[0])
        return _only([Command(program, ())], str(path), path.parent, options)
    commands, source, folder = _commands(words, path, options)
    return _only(commands, source, folder, options)


def _commands(words: list[str], path: Path, options: Options) -> tuple[list[Command], str, Path]:
    arguments = tuple(Token(word, Place("the command", 0, index)) for index, word in enumerate(words, 1))
    if words[0].endswith(SCRIPTS) and (path.is_file() or len(words) == 1):
        return _script(path, arguments[1:], options.variables), str(path), path.parent
    if len(words) == 1 and any(character.isspace() for character in words[0]):
        return _text(arguments[0], options.variables), "the launch command", Path()
    commands = unwrap(arguments, {}, shell=lambda token: _text(token, options.variables))
    if len(commands) == 1 and commands[0].program.kind == "executable" and commands[0].program.name.endswith(SCRIPTS):
        script = Path(commands[0].program.name)
        if script.is_file():
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
    candidates = _candidates(commands, options.framework) if options.framework else commands
    read = [_launch_of(command, source, folder, options) for command in candidates]
    known = [launch for launch in read if isinstance(launch, Launch)]
    if options.line is not None:
        known = [launch for launch in known if launch.command.place.line == options.line]
    distinct = {(launch.command.place.line, launch.framework): launch for launch in known}
    if not known:
        tried = ", ".join(dict.fromkeys(command.program.name for command in commands if command.program.name))
        tried = tried if len(tried) <= 200 else tried[:197] + "..."
        declined = [one for one in read if isinstance(one, Declined)]
        if declined:
            raise NoLaunchError(
                declined[0].why, declined[0].place, remedy=f"--framework {declined[0].framework} plans it all the same"
            )
        cut_off = "".join(f"; {command.cut_off}" for command in commands if command.cut_off)
        called = (calls_of(command, folder) for command in commands)
        others = [other for calls in called if calls is not None for other in of_others(calls)]
        if others:
            raise NoLaunchError(f"{' and '.join(others)}: a trainer that is not known here", Place(source))
        raise NoLaunchError(
            f"none of these starts a known trainer: {tried}{cut_off}" if tried else "there is no command in it",
            Place(source),
            remedy=f"name it with --framework NAME (one of {', '.join(index.names())})",
        )
    if len(distinct) > 1:
        lines = ", ".join(f"line {line} ({framework})" for line, framework in distinct)
        raise LaunchError(
            f"there are {len(distinct)} training commands: {lines}; choose one with --line N", Place(source)
        )
    if len(known) > 1 and any(launch.given != known[0].given for launch in known):
        line = known[0].command.place.line
        raise LaunchError(
            f"the command runs {len(known)} times in a loop, with different settings; the first is read where --set gives the"
            " variable of the loop",
            Place(source, line, 1),
        )
    return known[0]


def _candidates(commands: list[Command], framework: str) -> list[Command]:
    """Commands that may be a launch of the framework that the user named: its own programs, else Python programs, else all commands."""
    index.system_of(framework)
    patterns = [pattern for entry in index.entries_of(framework) for pattern in entry.programs]
    own = [command for command in commands if any(command.program.matches(pattern) for pattern in patterns)]
    return own or [command for command in commands if command.program.kind in ("module", "script")] or commands


def _launch_of(command: Command, source: str, folder: Path, options: Options) -> Launch | Declined | None:
    """A command with its settings, if a system knows it; else the reason why it is not a run of the system that has its settings."""
    calls = calls_of(command, folder)
    plain, _ = read_arguments(command.arguments)
    overridden, _ = read_arguments_quietly(command)
    keys = {*_keys(plain), *_keys(overridden)}
    if calls is not None:
        keys |= {*calls.settings, *(f"{callee}." for callee in calls.callees)}
    packages = calls.packages if calls is not None else {}
    values = {name: str(setting.value) for name, setting in overridden.items() if not setting.unknown}
    framework = options.framework or index.recognise(command, keys, values, packages)
    if framework is None:
        framework = index.recognise(command, {*keys, *_quiet_config_keys(command, folder)}, values, packages)
    if framework is None:
        return None
    system = index.system_of(framework)
    if options.framework is None and (why := why_not(command, system, folder)):
        return Declined(framework, why, command.place)
    given, missing, notes = _gather(command, system, folder)
    notes += [
        Note("assumes", f"{array.why} ({array.place}): its contents are not in this plan") for array in command.missing
    ]
    notes += [Note("ignores", command.cut_off)] if command.cut_off else []
    hidden = None
    if calls is not None:
        given, more = settings_of(calls, given, system)
        notes += more
        hidden = hidden_of(calls, system)
    return Launch(
        command=command,
        framework=framework,
        given={**given, **_set_settings(options.variables)},
        source=source,
        folder=folder,
        notes=tuple(notes),
        missing=missing,
        hidden=hidden,
        environment=_environment(command, options),
    )


def _environment(command: Command, options: Options) -> dict[str, str]:
    """Variables of a command whose values are known."""
    own = {name: token.text for name, token in command.environment.items() if not token.unknown}
    return own | options.variables


def _keys(settings: Mapping[str, Setting]) -> set[str]:
    """What a system is recognised by: the names of the settings, and the values of those that choose a trainer (`stage=ppo`)."""
    chosen = {f"{name}={setting.value}" for name, setting in settings.items() if isinstance(setting.value, str)}
    return {*settings, *chosen}


def read_arguments_quietly(command: Command) -> tuple[dict[str, Setting], list[Token]]:
    """Overrides of a command that may have other arguments too: an argument that is not an override is no error here."""
    try:
        return read_arguments(command.arguments, overrides=True)
    except LaunchError:
        return {}, []


def _set_settings(variables: Mapping[str, str]) -> dict[str, Setting]:
    """`--set` also gives settings: names that no shell variable can have, or that no variable of the script has."""
    place = Place("--set")
    return {
        canonical(name): Setting(canonical(name), value, place, name)
        for name, value in variables.items()
        if "." in name
    }


def _gather(
    command: Command, system: System, folder: Path
) -> tuple[dict[str, Setting], tuple[Parent, ...], list[Note]]:
    """Settings of a command: its configuration files first, its arguments over them; the files that are not here; what is assumed."""
    from rlstep_hooks.launch.inheritance import Parent, over, read_config

    settings, loose = read_arguments(command.arguments, overrides=system.overrides)
    base: dict[str, Setting] = {}
    missing: list[Parent] = []
    choices = choices_of(command.arguments) if system.overrides else {}
    chosen: set[str] = set()
    missing += _unknown_configs(settings, loose, system)
    for name, place in _config_files(command, settings, loose, system):
        file = find_file(name, folder, command.folder, beside=_config_folders(command))
        if file is None:
            missing.append(Parent(name, place))
            continue
        read = read_config(file, choices)
        base = over(base, read.settings)
        missing += read.missing
        chosen |= read.choices
    settings = {name: setting for name, setting in settings.items() if name not in chosen}
    return _with_own(missing, over(base, settings), system)


def _with_own(
    missing: Iterable[Parent], settings: dict[str, Setting], system: System
) -> tuple[dict[str, Setting], tuple[Parent, ...], list[Note]]:
    """Settings over those of the framework's own configurations that are not here; the files still missing; the assumptions."""
    from rlstep_hooks.launch.inheritance import over

    left: list[Parent] = []
    notes: list[Note] = []
    for parent in missing:
        name = parent.name.rpartition(".")[0] if parent.name.endswith(CONFIGS) else parent.name
        own = next((own for own in system.own_configs if name == own or name.endswith(f"/{own}")), None)
        if own is None:
            left.append(parent)
            continue
        place = Place(f"{parent.name} as {system.title} has it")
        shipped = {key: Setting(key, value, place, key) for key, value in system.own_configs[own].items()}
        if "config_name" in system.settings:
            shipped["config_name"] = Setting("config_name", own, place, "config_name")
        settings = over(shipped, settings)
        if parent.place != NOWHERE:  # a file that the script reads on its own gives defaults
            notes.append(
                Note("assumes", f"{parent.name} is the one of {system.title} {system.version}: it is not here")
            )
    return settings, tuple(left), notes


def _config_files(
    command: Command, settings: dict[str, Setting], loose: list[Token], system: System
) -> Iterator[tuple[str, Place]]:
    """The configuration files that a command names, or that its script reads if the command names none."""
    named = False
    for token in loose:
        if token.text.endswith(CONFIGS) and not token.unknown:
            named = True
            yield token.text, token.place
    for name in system.config_settings:
        setting = settings.get(name)
        if setting is not None:
            named = True
            if not setting.unknown and str(setting.value).endswith(CONFIGS):
                yield str(setting.value), setting.place
    hydra = _hydra_config(settings) if system.overrides else None
    if hydra is not None:
        named = True
        yield hydra
    script = PurePosixPath(command.program.name)
    if not named and command.program.kind == "script" and script.name in system.script_configs:
        yield str(script.parent / system.script_configs[script.name]), NOWHERE


def _unknown_configs(settings: dict[str, Setting], loose: list[Token], system: System) -> list[Parent]:
    """The configuration files whose names only the run knows; the plan is refused without them."""
    from rlstep_hooks.launch.inheritance import Parent

    named = [settings[name] for name in (*system.config_settings, "config_name", "cn") if name in settings]
    found = [(setting.unknown, str(setting.value), setting.place) for setting in named if setting.unknown]
    found += [
        (token.unknown, token.text, token.place) for token in loose if token.unknown and token.text.endswith(CONFIGS)
    ]
    return [Parent(text, place, unknown[0]) for unknown, text, place in found]


def _quiet_config_keys(command: Command, folder: Path) -> set[str]:
    """Names of the settings in configuration files that a command names, to recognise it by."""
    from rlstep_hooks.launch.inheritance import read_config

    keys: set[str] = set()
    for token in command.arguments:
        if not token.text.endswith(CONFIGS) or token.unknown:
            continue
        file = find_file(token.text.rpartition("=")[2], folder, command.folder)
        if file is not None:
            keys |= _keys(read_config(file).settings)
    named = _hydra_config(read_arguments(command.arguments)[0])
    if named is not None:
        file = find_file(named[0], folder, command.folder, beside=_config_folders(command))
        keys |= _keys(read_config(file).settings) if file is not None else set()
    return keys


def _config_folders(command: Command) -> tuple[str, ...]:
    """The folders in which Hydra looks: --config-path counts from the script, beside which configurations nearly always lie in such
    a folder."""
    own = command.program.folder
    return (own, f"{own}/config", f"{own}/configs") if own else ("config", "configs")


def _hydra_config(settings: Mapping[str, Setting]) -> tuple[str, Place] | None:
    """The file of the configuration that Hydra's flags name, if its name is known."""
    name = next((settings[each] for each in ("config_name", "cn") if each in settings), None)
    folder = next((settings[each] for each in ("config_path", "cp") if each in settings), None)
    if name is None or name.unknown:
        return None
    file = str(name.value) if str(name.value).endswith(CONFIGS) else f"{name.value}.yaml"
    return str(Path(str(folder.value)) / file) if folder is not None else file, name.place


def _config_launch(path: Path, options: Options) -> Launch:
    """A configuration file on its own."""
    from rlstep_hooks.launch.inheritance import read_config

    if not path.is_file():
        raise LaunchError("there is no such file", Place(str(path)))
    read = read_config(path)
    task = task_of(read.settings)
    if task is not None:
        from rlstep_hooks.launch.shell.script import read_text

        commands = read_text(task.text, str(path), given={**task.variables, **options.variables}, folder=path.parent)
        return _only(commands, str(path), path.parent, options)
    command = Command(Program("config", str(path)), ())
    framework = options.framework or index.recognise(command, _keys(read.settings))
    if framework is None:
        _refuse_missing(read.missing)
        raise NoLaunchError(
            f"no framework is known by these settings; name it with --framework NAME (one of {', '.join(index.names())})",
            Place(str(path)),
        )
    given, missing, notes = _with_own(read.missing, read.settings, index.system_of(framework))
    return Launch(
        command=command,
        framework=framework,
        given={**given, **_set_settings(options.variables)},
        source=str(path),
        folder=path.parent,
        notes=tuple(notes),
        missing=missing,
        environment=dict(options.variables),
    )


def _refuse_missing(missing: tuple[Parent, ...]) -> None:
    """Refuse to plan without this file: its settings are not guessed."""
    for parent in missing:
        if parent.unknown is not None:
            raise UnknownValueError("the configuration file", parent.unknown)
        raise LaunchError(
            f"{parent.name} is not here, and what it sets decides the plan",
            parent.place,
            remedy="give the path under which it is, or run this where the file is",
        )


def reading_of(words: list[str], options: Options | None = None) -> Reading:
    """The bare reading of a launch, without findings: for tests and for `diff`."""
    options = options or Options()
    launch = find_launch(words, options)
    system = index.system_of(launch.framework)
    release = release_for(system, launch.command, launch.given, options.version)
    return _read(system, request_of(launch, system, release.version, options))


def request_of(launch: Launch, system: System, version: str, options: Options) -> Request:
    """A launch as its system gets it.

    Raises:
        LaunchError: A file that decides the plan is not here, or a Python file hides settings.
    """
    _refuse_missing(launch.missing)
    if launch.hidden is not None:
        raise LaunchError(launch.hidden.why, launch.hidden.place, remedy="write the settings in the call")
    defaults = system.defaults(version)
    settings = Settings(launch.given, defaults, functions=system.resolvers, environment=launch.environment)
    return Request(
        settings=settings,
        version=version,
        command=launch.command,
        folder=launch.folder,
        rows_given=options.rows,
        world_size_given=options.world_size,
    )


def _read(system: System, request: Request) -> Reading:
    """What a system makes of a launch; a plan too long to list is a `LaunchError` too."""
    try:
        return read(system, request)
    except TooManyError as error:
        raise LaunchError(str(error)) from None
    except FormulaError as error:
        raise LaunchError(f"the declaration of {system.title} is at fault: {error}") from error
