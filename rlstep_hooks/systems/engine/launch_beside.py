"""A launch as the source and the configuration beside it have it: its declaration, its release, and its settings there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine.own_configuration import configuration, open_ended_of, over_releases_own
from rlstep_hooks.systems.engine.refused_by_checkout import (
    refused_as_added_twice,
    refused_by_source,
    refused_in_checkout,
)
from rlstep_hooks.systems.engine.release import nearest_release, release_for, release_in_checkout, with_read_source
from rlstep_hooks.systems.engine.request import release_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.checkout import Checkout
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import Beside, System
    from rlstep_hooks.systems.engine.launch import Launch
    from rlstep_hooks.systems.engine.planned_release import Release

_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
"""A value that is that of another setting: `ppo_mini_batch_size: ${data.train_batch_size}`."""


def as_beside(
    system: System, launch: Launch, release: Release, found: Beside | None, program: tuple[Checkout, str] | None
) -> tuple[System, Release, Launch]:
    """The declaration, the release and the launch as what lies beside the launch has them.

    Args:
        system: The system of the launch.
        launch: The launch.
        release: The release that it would be planned for alone.
        found: What the system makes of the source beside it; None where it has read none.
        program: The repository that the program lies in and its path there, where its configuration may be read; else None.
    """
    read = system if found is None else found.system
    if found is not None:
        launch, release = _judged_beside(system, launch, _release_beside(system, release, found), found)
        release = with_read_source(release, launch.given)
    if found is not None and found.settings:
        own = found.settings
        release = release_in_checkout(
            system, launch.command, launch.given, release, own, open_ended_of(own), keywords=launch.keywords
        )
    else:
        own = configuration(*program, launch.command, launch.given) if program is not None else {}
        release = refused_in_checkout(release, own, launch.command, launch.given) if own else release
    release = refused_as_added_twice(release, own, launch.command, launch.given)
    if found is not None:
        release = refused_by_source(release, launch.given, found.refused)
    if not own and program is not None:
        # Only what the framework has beside these is a default of the release.
        part = over_releases_own(*program, launch.command, launch.given, system)
        own = part.settings if part is not None else own
        if part is not None and part.missing and (said := Note("assumes", part.said())) not in launch.notes:
            release = msgspec.structs.replace(release, notes=(*release.notes, said))
    given = {**_differing(own, read, release.version), **launch.given}
    return read, release, msgspec.structs.replace(launch, given=given)


def _release_beside(system: System, release: Release, found: Beside) -> Release:
    """The release whose lines the source beside the launch has."""
    version, notes = release.version, release.notes
    if found.first and not release_of(found.first) <= release_of(version) < release_of(found.end):
        version = nearest_release(system, version, found.first, found.end)
        text = f"{system.title} {version}, the nearest release whose trainer has such lines; --version names another"
        notes = (Note("assumes", text),)
    return msgspec.structs.replace(release, version=version, notes=(*found.notes, *notes))


def _judged_beside(system: System, launch: Launch, release: Release, found: Beside) -> tuple[Launch, Release]:
    """The launch and its release, with the names of its settings judged by the fields that the source beside it has."""
    if not found.fields:
        return launch, release
    parser = launch.command.parser
    if parser is not None:
        parser = msgspec.structs.replace(parser, fields=parser.fields | found.fields)
    command = msgspec.structs.replace(launch.command, parser=parser)
    keywords = frozenset(name for name in launch.keywords if name.partition(".")[2] not in found.fields)
    judged = release_for(system, command, launch.given, release.version, keywords=keywords)
    release = msgspec.structs.replace(judged, version=release.version, notes=release.notes)
    return msgspec.structs.replace(launch, command=command, keywords=keywords), release


def _differing(own: Mapping[str, Setting], system: System, version: str) -> dict[str, Setting]:
    """What a checkout's own configuration has otherwise than the release: the rest is a default as it is anywhere.

    Where a release has no value of its own either, a reference says what its declaration says already.
    """
    defaults = system.defaults(version)
    declared = {each: name for name, typed in system.settings.items() for each in (name, *typed.also)}
    differing = {
        name: each for name, each in own.items() if name in declared and each.value != defaults.get(declared[name])
    }

    def refers(setting: Setting) -> bool:
        found = _REFERENCE.fullmatch(str(setting.value))
        return found is not None and found[1] in declared and defaults.get(declared[setting.name]) is not None

    return {name: each for name, each in differing.items() if "${" not in str(each.value) or refers(each)}
