"""A configuration file on its own -> a launch of the system that its settings are known from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rlstep_hooks.launch.command import Command, Program
from rlstep_hooks.launch.text import NoLaunchError
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.checked import is_taken
from rlstep_hooks.systems.engine.keys import key_list
from rlstep_hooks.systems.engine.launch import Launch, refuse_missing
from rlstep_hooks.systems.engine.launch_settings import keys_of, last_holds, set_settings, with_own_configs
from rlstep_hooks.systems.engine.own_program import with_reader

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rlstep_hooks.launch.inheritance import Configuration
    from rlstep_hooks.planning.launched import Options
    from rlstep_hooks.systems.engine.declaration import System

_SIZE = re.compile(
    r"(?:^|[._])(?:batch_size|epochs?|(?:num|max|train|training|total)_steps|(?:accumulation|aggregation)_steps|group_size|iterations)$"
)
"""The names of settings that say how much is trained, and how often."""
_OTHER_SIZE = re.compile(r"eval|test|valid|warmup|inference")


def launch_of_config(path: Path, read: Configuration, options: Options) -> Launch | None:
    """The launch that a configuration means; None where no system is known by its settings.

    Args:
        path: The file.
        read: Its settings, with those of the files that it inherits from.
        options: What completes or overrides it.

    Raises:
        LaunchError: A file that it inherits from is not here, or it has sizes that no release of the system has.
    """
    command = Command(Program("config", str(path)), ())
    framework = options.framework or index.recognise(command, keys_of(read.settings))
    if framework is None:
        refuse_missing(read.missing)
        return None
    system = index.system_of(framework)
    own = _sizes_of_its_own(read.settings, system) if options.framework is None else []
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


def _sizes_of_its_own(names: Iterable[str], system: System) -> list[str]:
    """The settings of a configuration file alone that say how much is trained and that no release of the framework has.

    They are read by a program that the file does not name, which may make the framework's sizes of them.

    Args:
        names: The settings of the file.
        system: The system that other settings of the file are known from.
    """
    if system.keys is None or not system.trainers:
        return []
    keys, known = system.keys, key_list(system.keys.file)
    return [
        name
        for name in names
        if _SIZE.search(name)
        and not _OTHER_SIZE.search(name)
        and not known.ever(name)
        and not is_taken(keys, known, name)
    ]
