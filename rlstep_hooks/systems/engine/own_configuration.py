"""The configuration of the program beside a launch: which settings Hydra accepts there, and what they are if the launch is silent.

Hydra takes `key=value` only where the configuration of the program has the key, whatever the program trains with: a checkout's own YAML
file decides, for every system whose launches are Hydra overrides.
"""

from __future__ import annotations

import os.path
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.arguments import choices_of
from rlstep_hooks.launch.inheritance import Configuration, read_config
from rlstep_hooks.launch.settings import Setting
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.launch.yaml_file import parse_yaml
from rlstep_hooks.systems.engine.hydra_main import hydra_main
from rlstep_hooks.systems.engine.keys import parents_of
from rlstep_hooks.systems.engine.launch_settings import with_own_configs
from rlstep_hooks.systems.engine.program_beside import program_beside

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from rlstep_hooks.launch.checkout import Checkout
    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.layers import Parent
    from rlstep_hooks.systems.engine.declaration import System

_GROUP = "a choice of a file"
"""What is written in the place of a group: `group=file` chooses one, and its settings may stand in another section."""
_ELSEWHERE = ("config_dir", "cd")
_PATH = ("config_path", "cp")
_NAME = ("config_name", "cn")


class InPart(msgspec.Struct, frozen=True):
    """A configuration of which some files are not here."""

    settings: dict[str, Setting]
    """The settings of the files that are here."""
    missing: tuple[str, ...]
    """The files that are not here, each with the place where it is taken over."""

    def said(self) -> str:
        """What is assumed of the files that are not here."""
        return (
            f"the configuration beside the launch was read in part: {', '.join(self.missing)} is not here, and what it sets is taken"
            " from the release"
        )


def configuration(
    checkout: Checkout, program: str, command: Command, given: Mapping[str, Setting]
) -> dict[str, Setting]:
    """The settings of the program's own YAML file; empty where it does not lie in the checkout, or not all of it does.

    Args:
        checkout: The package.
        program: The path of the program below the package.
        command: The launch, which may choose files for groups of the configuration.
        given: What the launch sets.
    """
    whole = _whole(checkout, program, command, given)
    if whole is None or whole.missing or whole.repeated:
        # A part of the files says nothing of the whole.
        return {}
    keys = (group.replace("/", ".") for group in whole.choices)
    groups = {name for key in keys for name in (key, key.partition("@")[0])}
    return {**{group: Setting(group, None, written=_GROUP) for group in groups}, **whole.settings}


def _whole(checkout: Checkout, program: str, command: Command, given: Mapping[str, Setting]) -> Configuration | None:
    """The program's own YAML file with the files that it takes over; None where it does not lie in the checkout, or is no YAML."""
    path = _file(checkout, program, given)
    source = None if path.startswith("..") or not path else checkout.source(path)
    if source is None:
        return None
    try:
        settings = parse_yaml(source.text, source.shown)
        if not any(name.partition(".")[0] == "defaults" for name in settings):
            return Configuration(settings)
        return read_config(checkout.package / path, choices_of(command.arguments))
    except (LaunchError, OSError):
        return None


def _file(checkout: Checkout, program: str, given: Mapping[str, Setting]) -> str:
    """The path of the YAML file that the program reads; empty where it is not known.

    Hydra takes a `--config-path` that is no absolute path from the folder of the program, as it takes the decorator's
    (hydra 1.3.2 _internal/utils.py `compute_search_path_dir`).
    """
    said = hydra_main(checkout, program)
    if said is None or any(name in given for name in _ELSEWHERE):
        return ""
    chosen = [str(given[name].value) for name in _PATH if name in given]
    folder = os.path.join(os.path.dirname(program), chosen[0]) if chosen else said.folder
    named = next((str(given[name].value) for name in _NAME if name in given), said.name)
    return os.path.normpath(os.path.join(folder, f"{named.removesuffix('.yaml')}.yaml"))


def taken_in_part(command: Command, folder: Path, given: Mapping[str, Setting]) -> InPart | None:
    """What is here of the configuration that the program beside a launch reads, where files that it takes over are not; else None.

    Such a launch runs only where they are: a `.gitignore` that has `data/` leaves a folder of that name out of a repository.

    Args:
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.
    """
    found = program_beside(command, folder)
    if found is None:
        return None
    checkout, program = found
    whole = _whole(checkout, program, command, given)
    if whole is None or not whole.missing:
        return None
    return InPart(whole.settings, _shown(whole.missing, checkout))


def _shown(missing: Iterable[Parent], checkout: Checkout) -> tuple[str, ...]:
    """Files that are not here, each with the place where it is taken over."""
    return tuple(
        f"{each.name} ({os.path.relpath(each.place.source, checkout.root)}:{each.place.line})" for each in missing
    )


def configuration_beside(command: Command, folder: Path, given: Mapping[str, Setting]) -> dict[str, Setting]:
    """The settings of the configuration that the program of a launch reads, where both lie beside it; else empty.

    Args:
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.
    """
    found = program_beside(command, folder)
    if found is None:
        return {}
    return configuration(*found, command, given)


def absent_configuration(command: Command, folder: Path, given: Mapping[str, Setting], system: System) -> str:
    """The YAML file that the program of a launch hands to Hydra, where it is not here; empty where it is, or where none is known.

    A file of the framework's own name stands for that of the release.

    Args:
        command: The launch, which may name another file: that one is looked for elsewhere.
        folder: The folder that it lies in.
        given: What it sets.
        system: The framework.
    """
    found = program_beside(command, folder)
    if found is None or any(name in given for name in (*_ELSEWHERE, *_PATH, *_NAME)):
        return ""
    checkout, program = found
    path = _file(checkout, program, given)
    if not path or ":" in path or PurePosixPath(path).stem in system.own_configs:
        return ""
    file = checkout.package / path
    return "" if file.is_file() else os.path.relpath(file, checkout.root)


def over_releases_own(
    checkout: Checkout, program: str, command: Command, given: Mapping[str, Setting], system: System
) -> InPart | None:
    """What is here of the program's own YAML file, where files that it takes over are not; None where all of it is here, or none.

    The framework's own file (`defaults: [ppo_trainer]`) has what the release has. What is still missing is another one.

    Args:
        checkout: Where the program lies.
        program: Its path there.
        command: The launch.
        given: What it sets.
        system: The framework.
    """
    whole = _whole(checkout, program, command, given)
    if whole is None or not whole.missing or whole.repeated:
        return None
    settings, left, _ = with_own_configs(whole.missing, whole.settings, system)
    return InPart(settings, _shown(left, checkout))


def names_beside(command: Command, folder: Path) -> frozenset[str]:
    """The names of the settings of the YAML file that the program of a launch hands to Hydra, as far as its files are here.

    Args:
        command: The launch.
        folder: The folder that it lies in.
    """
    found = program_beside(command, folder)
    whole = _whole(*found, command, {}) if found is not None else None
    return frozenset(whole.settings) if whole is not None else frozenset()


def open_ended_of(own: Mapping[str, Setting]) -> frozenset[str]:
    """The settings of a configuration that may have others below them: a value may be a mapping that is not written out, while a group
    has no settings below its own name.

    Args:
        own: All settings of that configuration.
    """
    return frozenset(name for name, setting in own.items() if setting.written != _GROUP)


def not_in(own: Mapping[str, Setting], command: Command, given: Mapping[str, Setting]) -> list[Setting]:
    """The overrides of a launch that Hydra refuses, because the configuration of its program has no such setting.

    Args:
        own: All settings of that configuration.
        command: The launch.
        given: What it sets.
    """
    sections = {section for name in own for section in parents_of(name)}
    open_ended = open_ended_of(own)
    overridden = {token.text.lstrip("+~").partition("=")[0]: token.place for token in command.arguments}
    added = {token.text.lstrip("+").partition("=")[0] for token in command.arguments if token.text.startswith("+")}
    return [
        setting
        for name, setting in given.items()
        if overridden.get(setting.written) == setting.place
        and not setting.written.startswith("-")
        and not (setting.added or setting.deleted or setting.written in added)
        and name.partition(".")[0] != "hydra"
        and not (name in own or name in sections or not open_ended.isdisjoint(parents_of(name)))
    ]


def added_twice(own: Mapping[str, Setting], command: Command, given: Mapping[str, Setting]) -> list[Setting]:
    """The overrides with `+` of settings that the configuration has: Hydra refuses them, but where there is no value yet.

    hydra 1.3.2 _internal/config_loader_impl.py `_apply_overrides_to_config` (`OmegaConf.select(cfg, key) is None`).

    Args:
        own: All settings of that configuration.
        command: The launch.
        given: What it sets.
    """
    added = {
        token.text[1:].partition("=")[0]
        for token in command.arguments
        if token.text.startswith("+") and not token.text.startswith("++")
    }
    return [
        setting
        for name, setting in given.items()
        if setting.added
        and setting.written in added
        and not isinstance(setting.value, list | dict)
        and name in own
        and own[name].value not in (None, "???", {})
        and "${" not in str(own[name].value)
    ]
