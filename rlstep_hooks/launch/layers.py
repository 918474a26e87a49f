"""Settings laid over others, and the files of them that are not here: for configurations in files, in Python and in commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.text import Place, UnknownText

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlstep_hooks.launch.settings import Setting


class Parent(msgspec.Struct, frozen=True):
    """A parent that is not here."""

    name: str
    """The name of the parent as it is written."""
    place: Place
    unknown: UnknownText | None = None
    """What the name of the parent depends on, if only the run knows that."""
    what: str = "the configuration file"
    """What cannot be known then."""


def over(below: Mapping[str, Setting], above: Mapping[str, Setting]) -> dict[str, Setting]:
    """Settings laid over others: a mapping completes a mapping, anything else replaces what was there.

    What is still to be given (`???`) and an empty mapping replace nothing. `_override_: true` in a section drops what was in it.
    """
    fresh = {name.partition(".")[0] for name, setting in above.items() if _is_marker(name) and setting.value is True}
    result = {name: setting for name, setting in below.items() if name.partition(".")[0] not in fresh}
    sections = {section for name in result for section in _sections(name)}
    for name, setting in above.items():
        if _is_marker(name) or (setting.value == "???" and (name in result or name in sections)):
            continue
        if name in sections:
            if setting.value == {}:
                continue
            result = {other: kept for other, kept in result.items() if not other.startswith(f"{name}.")}
        for section in _sections(name):
            result.pop(section, None)
            sections.add(section)
        result.pop(name, None)
        result[name] = setting
    return result


def _is_marker(name: str) -> bool:
    return name.count(".") == 1 and name.endswith("._override_")


def _sections(name: str) -> Iterator[str]:
    """The mappings that a setting is in: "a" and "a.b" for "a.b.c"."""
    at = name.find(".")
    while at != -1:
        yield name[:at]
        at = name.find(".", at + 1)
