"""The settings of a command that a system knows: configuration files, the command's arguments over them, `--set`."""

from __future__ import annotations

import os.path
import re
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from rlstep_hooks.launch.arguments import canonical, choices_of, read_arguments
from rlstep_hooks.launch.checkout import find_checkout
from rlstep_hooks.launch.files import at_its_end, find_file, is_allowed
from rlstep_hooks.launch.layers import Parent, over
from rlstep_hooks.launch.settings import Setting
from rlstep_hooks.launch.text import NOWHERE, LaunchError, Place, SettingError
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine.program_beside import program_beside

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.inheritance import Configuration
    from rlstep_hooks.launch.text import Token
    from rlstep_hooks.systems.engine.declaration import System

CONFIGS = (".yaml", ".yml", ".toml")


def keys_of(settings: Mapping[str, Setting]) -> set[str]:
    """What a system is recognised by: the names of the settings, and the values of those that choose a trainer (`stage=ppo`)."""
    chosen = {f"{name}={setting.value}" for name, setting in settings.items() if isinstance(setting.value, str)}
    return {*settings, *chosen}


def read_arguments_quietly(command: Command) -> tuple[dict[str, Setting], list[Token]]:
    """Overrides of a command that may have other arguments too: an argument that is not an override is no error here."""
    try:
        return read_arguments(command.arguments, overrides=True)
    except LaunchError:
        return {}, []


def set_settings(variables: Mapping[str, str]) -> dict[str, Setting]:
    """`--set` also gives settings: names with a dot, which no shell variable can have."""
    place = Place("--set")
    return {
        canonical(name): Setting(canonical(name), value, place, name)
        for name, value in variables.items()
        if "." in name
    }


def settings_of_command(
    command: Command, system: System, folder: Path
) -> tuple[dict[str, Setting], tuple[Parent, ...], list[Note]]:
    """Settings of a command: its configuration files first, its arguments over them; the files that are not here; what is assumed."""
    settings, loose = read_arguments(command.arguments, overrides=system.overrides)
    base: dict[str, Setting] = {}
    missing: list[Parent] = []
    said: list[Note] = []
    choices = choices_of(command.arguments) if system.overrides else {}
    chosen: set[str] = set()
    missing += _unknown_configs(settings, loose, system)
    for name, place in _config_files(command, settings, loose, system):
        file, assumed = _config_file(name, folder, command)
        said += assumed
        if file is None:
            missing.append(Parent(name, place))
            continue
        read = _read_config(file, choices)
        said += last_holds(read, system)
        base = over(base, read.settings)
        missing += read.missing
        chosen |= read.choices
    settings = {name: setting for name, setting in settings.items() if name not in chosen}
    missing += _made_words(loose)
    if not base and not missing:
        missing += _unknown_arguments(command, settings, loose)
    absent = [parent for parent in missing if _is_absent_from_copy(parent, system, folder)]
    missing = [parent for parent in missing if parent not in absent]
    given, left, notes = with_own_configs(missing, over(base, settings), system)
    left = (*absent, *left)
    unknown = (token.unknown[0] for token in loose if token.unknown and not token.text.endswith(CONFIGS))
    notes += [Note("assumes", f"{one.why} ({one.place}): its contents are not in this plan") for one in unknown]
    return given, left, [*said, *notes]


def _read_config(file: Path, choices: Mapping[str, str] | None = None) -> Configuration:
    """The settings of a configuration file. What reads it is only imported where there is one: most commands name none."""
    from rlstep_hooks.launch.inheritance import read_config

    return read_config(file, choices)


def _config_file(name: str, folder: Path, command: Command) -> tuple[Path | None, list[Note]]:
    """A configuration file that a command names, and what is assumed of the beginning of its path.

    That may be a folder of the machine that the script was written for, or a variable that nothing sets.
    """
    file = find_file(name, folder, command.folder, beside=_config_folders(command)) or _beside_program(
        name, command, folder
    )
    if file is not None:
        return file, []
    behind = _BEHIND_VARIABLE.fullmatch(name)
    file = at_its_end(name, folder) if behind is None else find_file(behind["path"], folder, command.folder)
    if file is None:
        return None, []
    if behind is None:
        here = os.path.relpath(file, folder)
        return file, [Note("assumes", f"{name}, which is not on this machine, is {here} here")]
    text = (
        f"{behind['variable']}, which is not set in the script, is the folder that has {behind['path']} here ({file})"
    )
    return file, [Note("assumes", text)]


def _is_absent_from_copy(parent: Parent, system: System, folder: Path) -> bool:
    """Whether the launch runs in a copy of the framework that lacks a configuration: the run does not find it there either."""
    path = PurePosixPath(parent.name)
    named = parent.place != NOWHERE and path.suffix in CONFIGS and not path.is_absolute() and "$" not in parent.name
    if not (system.home and named):
        return False
    copies = find_checkout(system.home, [folder])
    return bool(copies) and not any((copy.package.parent / path).is_file() for copy in copies)


def _beside_program(name: str, command: Command, folder: Path) -> Path | None:
    """The file beside a module that lies in the repository, and in no folder of the launch: a script may say so by PYTHONPATH."""
    found = program_beside(command, folder) if command.program.kind == "module" else None
    if found is None:
        return None
    checkout, program = found
    home = (checkout.package / program).parent
    files = (home / inner / name for inner in ("", "config", "configs"))
    return next((file for file in files if is_allowed(file) and file.is_file()), None)


_BEHIND_VARIABLE = re.compile(r"(?P<variable>\$\w+|\$\{\w+\})/(?P<path>.+/.+)")


def last_holds(read: Configuration, system: System) -> list[Note]:
    """That the last of keys that a file has several times holds, for a framework whose loader keeps it.

    Raises:
        SettingError: The framework's loader refuses such a file, or is not known to keep the last.
    """
    if read.repeated and not system.keeps_last_key:
        raise SettingError(str(read.repeated[0]), read.repeated[0].place)
    return [
        Note("assumes", f"{twice} ({twice.place}): {system.title} reads the file with PyYAML, which keeps the last")
        for twice in read.repeated
    ]


def with_own_configs(
    missing: Iterable[Parent], settings: dict[str, Setting], system: System
) -> tuple[dict[str, Setting], tuple[Parent, ...], list[Note]]:
    """Settings over those of the framework's own configurations that are not here; the files still missing; the assumptions."""
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
    named = [settings[name] for name in (*system.config_settings, "config_name", "cn") if name in settings]
    found = [(setting.unknown, str(setting.value), setting.place) for setting in named if setting.unknown]
    found += [
        (token.unknown, token.text, token.place) for token in loose if token.unknown and token.text.endswith(CONFIGS)
    ]
    return [Parent(text, place, unknown[0]) for unknown, text, place in found]


def _unknown_arguments(command: Command, settings: dict[str, Setting], loose: list[Token]) -> list[Parent]:
    """What may name a configuration file, or hold all settings: `rl @ $FILE`, or a variable that is the only argument.

    Beside known settings a variable is taken for further ones, which a note says.
    """
    unknown = [(token.text, token.place, token.unknown[0]) for token in loose if token.unknown]
    unknown += [(f"${array.name}", array.place, array) for array in command.missing]
    if any(token.text == "@" for token in loose):
        return [Parent(*one) for one in unknown[:1]]
    return [] if settings else [Parent(*one, what="what the launch is given") for one in unknown[:1]]


def _made_words(loose: list[Token]) -> list[Parent]:
    """Words that a Python program makes for a command, and that only the run knows: settings of the program's own."""
    made = [one for one in loose if one.unknown and one.place.source.endswith(".py") and one.text.startswith("$(")]
    return [Parent(one.text, one.place, one.unknown[0], what="what the launch is given") for one in made[:1]]


def quiet_config_keys(command: Command, folder: Path) -> set[str]:
    """Names of the settings in configuration files that a command names, to recognise it by.

    The value of a setting may be a file of another kind, such as a list: it is no error that this one is no configuration.
    """
    keys: set[str] = set()
    for token in command.arguments:
        if not token.text.endswith(CONFIGS) or token.unknown:
            continue
        file = find_file(token.text.rpartition("=")[2], folder, command.folder)
        if file is not None:
            with suppress(LaunchError):
                keys |= keys_of(_read_config(file).settings)
    named = _hydra_config(read_arguments(command.arguments)[0])
    if named is not None:
        file = find_file(named[0], folder, command.folder, beside=_config_folders(command))
        keys |= keys_of(_read_config(file).settings) if file is not None else set()
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
