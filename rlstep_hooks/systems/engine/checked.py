"""Which settings of a launch have names that the framework itself checks, and which further names it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.arguments import canonical
from rlstep_hooks.launch.wildcards import matches
from rlstep_hooks.systems.engine.entry import named

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.keys import KeyList
    from rlstep_hooks.systems.engine.parts import Keys

_HYDRAS = ("._target_", "._convert_", "._partial_", "._recursive_")
"""What Hydra itself reads in a section."""


def of_own_program(keys: Keys, known: KeyList, given: Mapping[str, Setting]) -> dict[str, Setting]:
    """The settings of a program of somebody's own that are written like the framework's."""
    return {
        name: setting
        for name, setting in given.items()
        if not (setting.deleted or setting.place.source in ("--set", "") or setting.place.source.endswith(".py"))
        and "." in name
        and not name.endswith(_HYDRAS)
        and not is_taken(keys, known, name)
    }


def checked_settings(
    keys: Keys, known: KeyList, command: Command, given: Mapping[str, Setting], keywords: frozenset[str]
) -> dict[str, Setting]:
    """The settings whose names the framework itself checks, by these names: of a file the first part, of a call the keyword."""
    own = command.parser.fields if command.parser is not None else frozenset[str]()
    strict = command.parser is not None or any(command.program.matches(pattern) for pattern in keys.strict)
    strict = strict and not (keys.unless and named(keys.unless)(given))
    found: dict[str, Setting] = {}
    for name, setting in given.items():
        source, checked = setting.place.source, name
        if setting.added or setting.deleted or source == "--set":
            continue
        if source.endswith((".py", ".ipynb")):
            if not keys.says or name not in keywords:
                continue
            checked = name.partition(".")[2]
        elif source.endswith((".yaml", ".yml", ".toml")):
            checked = name.partition(".")[0]
            alone = command.program.kind == "config" and known.ever(checked)
            if not keys.says or not (strict or alone):
                continue
            setting = msgspec.structs.replace(setting, name=checked, written=checked)
        elif not strict:
            continue
        if not (is_taken(keys, known, checked) or canonical(checked) in own):
            found[checked] = setting
    return found


def is_taken(keys: Keys, known: KeyList, name: str) -> bool:
    """Whether a program takes a name that is none of its settings: it takes it too, or it lies within them."""
    also = any(matches(name, pattern) for pattern in keys.also)
    handed_on = not known.ever(name) and any(matches(name, pattern) for pattern in keys.open)
    return also or handed_on or known.below_a_setting(name) or known.is_section(name)


def looked_at(keys: Keys | None, settings: Iterable[Setting]) -> list[str]:
    """The settings among these that were read in the source: the schedule does not depend on them."""
    patterns = (*keys.no_effect, *keys.open) if keys is not None else ()
    return [s.name for s in settings if any(matches(s.name, pattern) for pattern in patterns)]
