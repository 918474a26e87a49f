"""One command -> a launch: which system it is one of, what it sets, and why it is none although it has a system's settings."""

from __future__ import annotations

import os.path
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.accelerate import with_config_read
from rlstep_hooks.launch.arguments import read_arguments
from rlstep_hooks.launch.command import Program
from rlstep_hooks.launch.files import edited
from rlstep_hooks.launch.layers import Parent
from rlstep_hooks.launch.text import LaunchError, Place, Token
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.abbreviations import spelled_out
from rlstep_hooks.systems.engine.absent import flags_of_its_own, is_absent
from rlstep_hooks.systems.engine.declaration import System
from rlstep_hooks.systems.engine.entry import named
from rlstep_hooks.systems.engine.launch import Declined, Launch
from rlstep_hooks.systems.engine.launch_settings import (
    keys_of,
    quiet_config_keys,
    read_arguments_quietly,
    set_settings,
    settings_of_command,
)
from rlstep_hooks.systems.engine.trains import file_of, why_not

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.planning.launched import Options
    from rlstep_hooks.systems.engine.python_program import PythonProgram


class _Relative(msgspec.Struct, frozen=True):
    """A relative of a system that is known from the source beside a launch."""

    system: System
    trainer_read: bool
    """Whether the very trainer that the launch makes was read, and samples as the relative's does."""

    @property
    def remedy(self) -> str:
        """The option with which the launch is planned as one of this system."""
        return f"--framework {self.system.name} plans it as {self.system.title}, whose trainer samples as this one does"


def launch_of(command: Command, source: str, folder: Path, options: Options) -> Launch | Declined | None:
    """A command with its settings, if a system knows it; else the reason why it is not a run of the system that has its settings.

    Args:
        command: The command.
        source: Where it stands, as messages name it.
        folder: The folder of the launch script.
        options: What completes or overrides it.
    """
    started = command
    set_by_user = {name: Token(value, Place("--set")) for name, value in options.variables.items()}
    command = msgspec.structs.replace(command, environment={**set_by_user, **command.environment})
    program = _program(command, folder, options)
    if program is not None:
        command = msgspec.structs.replace(command, place=program.place)
    plain, _ = read_arguments(command.arguments)
    overridden, _ = read_arguments_quietly(command)
    keys = {*keys_of(plain), *keys_of(overridden)}
    if program is not None:
        keys |= program.names
    packages = program.packages if program is not None else {}
    values = {name: str(setting.value) for name, setting in overridden.items() if not setting.unknown}
    framework = options.framework or index.recognise(command, keys, values, packages)
    if framework is None and (in_config := quiet_config_keys(command, folder) - keys):
        framework = index.recognise(command, keys | in_config, values, packages)
    if framework is None and program is not None:
        framework = _by_its_configuration(command, folder, keys, values, packages)
    if framework is None:
        return _launch_elsewhere(command, source, folder, options, program) if program is not None else None
    if options.framework is None:
        framework = _as_the_settings_say(framework, command, folder, keys, values, packages)
    if options.framework is None and options.version is None:
        framework = _as_the_trainer_says(framework, command, folder, keys, values)
    system = index.system_of(framework)
    command = with_config_read(command, folder)
    if program is not None:
        command = program.parsed(command, system)
        meant = program.of_one_training(command, system, folder, options)
        if isinstance(meant, Declined):
            return meant
        program, command = meant, msgspec.structs.replace(command, place=meant.place)
    notes: list[Note] = []
    if options.framework is None:
        about = program.judged(command, system) if program is not None else None
        why = why_not(command, system, folder) or (about.why_not if about is not None else "")
        if why:
            known = _relative(framework, command, folder) if about is not None and about.why_not else None
            if known is not None and known.trainer_read and not why_not(command, known.system, folder):
                return launch_of(command, source, folder, msgspec.structs.replace(options, framework=known.system.name))
            return Declined(
                framework,
                why,
                command.place,
                known.remedy if known is not None else f"--framework {framework} plans it all the same",
            )
        if program is not None and about is not None and about.several:
            return program.several(about, framework)
        notes += about.notes if about is not None else ()
    absent = is_absent(command, system, folder)
    own_flags = flags_of_its_own(command, system) if absent and options.framework is None else []
    if own_flags:
        why = (
            f"{command.program.name} is not here, and {', '.join(own_flags)}, which it is given, is none of {system.title}'s: what it"
            " makes of its flags is not known"
        )
        remedy = f"plan it where the file is, or --framework {framework} reads the other flags as {system.title}'s own"
        return Declined(framework, why, command.place, remedy)
    given, missing, assumed = settings_of_command(command, system, folder)
    if program is not None and system.overrides and options.framework is None:
        missing = (*missing, *_not_here(command, folder, given, system))
    if options.framework is None:
        assumed += _told_by(system, command, keys, values)
    assumed += [
        Note("assumes", f"{array.why} ({array.place}): its contents are not in this plan") for array in command.missing
    ]
    assumed += [Note("assumes", command.needs)] if command.needs else []
    assumed += [Note("ignores", command.cut_off)] if command.cut_off else []
    notes = [*assumed, *notes]
    if absent:
        text = f"{command.program.name}, which is not here, hands its flags to {system.title} as they are named"
        notes.append(Note("assumes", text))
    added = program.added(command, system, given, folder, options) if program is not None else None
    if added is not None:
        given = added.given
        notes += added.notes
    given, more = spelled_out(system, command, given, options.version)
    notes += more
    launch = Launch(
        command=command,
        framework=framework,
        given={**given, **set_settings(options.variables)},
        source=source,
        folder=folder,
        notes=tuple(notes),
        missing=missing,
        hidden=added.hidden if added is not None else None,
        environment=_environment(command, options),
        keywords=added.keywords if added is not None else frozenset(),
    )
    if launch.hidden is None or program is None:
        return launch
    return _with_keyword_functions(program.file, lambda: launch_of(started, source, folder, options)) or launch


def _with_keyword_functions(file: Path, read: Callable[[], Launch | Declined | None]) -> Launch | None:
    """The launch of a program with the functions in it that it imports to make its configuration; None where that says no more."""
    from rlstep_hooks.launch.python_inlined import (
        with_keyword_functions,
    )  # only where the program does not say its settings

    text = with_keyword_functions(file)
    if text is None:
        return None
    with edited({str(file): text}):
        found = read()
    return found if isinstance(found, Launch) and found.hidden is None else None


def _program(command: Command, folder: Path, options: Options) -> PythonProgram | None:
    """The Python file that a command runs; None where it is not here."""
    file = file_of(command, folder)
    if file is None:
        return None
    # Only where there is a file to read: what reads Python takes 20 ms to load.
    from rlstep_hooks.systems.engine.python_program import read_program

    return read_program(command, folder, file, options)


def _by_its_configuration(
    command: Command, folder: Path, keys: set[str], values: Mapping[str, str], packages: Mapping[str, str]
) -> str | None:
    """The system that a program is one of by the configuration that it hands to Hydra: a launch need not repeat a setting of it.

    Only where what trains with the system can be looked for in the program: such a configuration may be that of an evaluation too.
    """
    from rlstep_hooks.systems.engine.own_configuration import names_beside  # only where nothing else says what it is

    names = names_beside(command, folder)
    framework = index.recognise(command, keys | names, values, packages) if names else None
    return framework if framework is not None and index.system_of(framework).trains else None


def _not_here(command: Command, folder: Path, given: Mapping[str, Setting], system: System) -> tuple[Parent, ...]:
    """The configuration that a program hands to Hydra and that is not here: nothing says what it sets."""
    from rlstep_hooks.systems.engine.own_configuration import absent_configuration  # only where there is a program

    name = absent_configuration(command, folder, given, system)
    return (Parent(name, command.place),) if name else ()


def _launch_elsewhere(
    command: Command, source: str, folder: Path, options: Options, program: PythonProgram
) -> Launch | Declined | None:
    """A command whose program calls a function of a file beside it, which trains; None where it calls none."""
    trains = program.trained_elsewhere(command)
    if trains is None:
        return None
    called = Program("script", str(trains), caller=str(program.file))
    found = launch_of(msgspec.structs.replace(command, program=called), source, folder, options)
    if not isinstance(found, Launch):
        return found
    beside = os.path.relpath(trains, program.file.parent)
    note = Note("assumes", f"{program.file.name} trains by what it calls of {beside}")
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
