"""The beginning of a flag stands for it, as argparse has it (`_get_option_tuples` of CPython's argparse.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.arguments import canonical
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine.keys import key_list

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import System


def meant_by(setting: Setting, names: Iterable[str], *, dashed: bool) -> list[str]:
    """The options that a flag may be the beginning of: itself alone where it is one; with several argparse ends the run.

    Args:
        setting: The flag, as it is written.
        names: The settings of the release.
        dashed: Whether each of them is an option in two spellings, with underscores and with dashes. argparse counts both.
    """
    begin = setting.written.partition("=")[0]
    spelled = ((name, name.replace("_", "-")) if dashed else (name,) for name in names)
    options = [f"--{each}" for spellings in spelled for each in dict.fromkeys(spellings)]
    return [begin] if begin in options else [option for option in options if option.startswith(begin)]


def is_flag(setting: Setting) -> bool:
    """Whether a setting was given as a long flag of a command."""
    return setting.written.startswith("--")


def spelled_out(
    system: System, command: Command, given: Mapping[str, Setting], asked: str | None
) -> tuple[dict[str, Setting], list[Note]]:
    """The settings of a launch with those flags that are the beginning of one name under this name; notes on these.

    Where both are given, the later one holds, as in argparse.
    """
    keys, parser = system.keys, command.parser
    if keys is None or not keys.abbreviated:
        return dict(given), []
    if parser is None and not any(command.program.matches(pattern) for pattern in keys.strict):
        return dict(given), []
    known = key_list(keys.file)
    own = parser.fields if parser is not None else frozenset[str]()
    names = [*known.of(asked or system.version), *own]
    found: dict[str, Setting] = {}
    notes: list[Note] = []
    for name, setting in given.items():
        meant = name
        if is_flag(setting) and not (known.ever(name) or name in own):
            options = meant_by(setting, names, dashed=keys.dashed)
            if len(options) == 1:
                meant = canonical(options[0])
                notes.append(Note("assumes", f"{setting} is {meant}: argparse takes the beginning of a name for it"))
        found.pop(meant, None)
        found[meant] = msgspec.structs.replace(setting, name=meant)
    return found, notes
