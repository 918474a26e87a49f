"""For which release a launch is planned, and which of its settings no release has.

The framework's own settings decide: Hydra refuses an override of a key that its configuration does not have (but for `+key=`), and
argparse a flag that it does not know. So a launch that gives settings of an older release only is one of that release; a setting that
no release has is a misspelling, or the launch is one of a fork.
"""

from __future__ import annotations

from contextlib import suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.finding import Finding
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.engine.abbreviations import is_flag, meant_by
from rlstep_hooks.systems.engine.entry import named
from rlstep_hooks.systems.engine.installed import planned_here
from rlstep_hooks.systems.engine.keys import KeyList, key_list, runs_of
from rlstep_hooks.systems.engine.parts import Said
from rlstep_hooks.systems.engine.request import release_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import Keys, System


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """The release that a launch is planned for."""

    version: str
    notes: tuple[Note, ...] = ()
    findings: tuple[Finding, ...] = ()
    """The names of settings that the framework refuses, and those that only a fork can have."""
    refused: tuple[str, ...] = ()
    """Settings that the findings say are refused."""
    foreign: tuple[str, ...] = ()
    """Settings that no release has and that are no misspelling: the launch is one of a fork."""


def release_for(
    system: System,
    command: Command,
    given: Mapping[str, Setting],
    asked: str | None,
    *,
    keywords: frozenset[str] = frozenset(),
) -> Release:
    """The release for a launch: the one asked for, else the newest one that accepts the names of its settings.

    Args:
        system: The system.
        command: The command.
        given: What the launch sets.
        asked: The release that the user names.
        keywords: Names ("Callee.keyword") that the framework's own classes are given in a Python file.
    """
    if system.keys is None:
        return Release(version=asked or system.version, notes=_newest(system) if asked is None else ())
    known = key_list(system.keys.file)
    if system.keys.forked and not any(command.program.matches(pattern) for pattern in system.keys.strict):
        return _of_own_program(system, known, command, given, asked)
    subject = _subject(system.keys, known, command, given, keywords)
    names = list(subject)
    version = asked or _newest_that_accepts(system, known, names)
    unknown = _unknown(system.keys, known, command, subject, version)
    notes = _notes(system, known, names, version, asked)
    foreign: tuple[str, ...] = ()
    if asked is None and system.keys.forked and any(_is_foreign(known, name, version, given) for name in unknown):
        version = _nearest_to_fork(system, known, names)
        unknown = _unknown(system.keys, known, command, subject, version)
        foreign = tuple(name for name in unknown if not known.ever(name))
        notes = (_fork_note(system, version),)
    notes = (*notes, *_added(system, known, given))
    if asked is None and unknown and all(known.ever(name) for name in unknown):
        between = _between_releases(system, known, names, unknown, version)
        if between is not None:
            refused = _names_of(subject, unknown)
            return Release(version=version, notes=notes, findings=(between,), refused=refused)
    return _judged(Release(version=version, notes=notes, foreign=foreign), system, known, command, subject, unknown)


def release_installed(
    system: System,
    command: Command,
    given: Mapping[str, Setting],
    otherwise: Release,
    *,
    keywords: frozenset[str] = frozenset(),
) -> Release:
    """The release that is installed here, for a launch that is about to run here; another one where its formulas are not known."""
    version = planned_here(system)
    if not version or (system.keys is not None and version not in planned_releases(system)):
        return otherwise
    release = release_for(system, command, given, version, keywords=keywords)
    installed = Note("assumes", f"{system.title} {version}, the release that is installed here")
    return msgspec.structs.replace(release, notes=(installed, *release.notes))


def _between_releases(
    system: System, known: KeyList, names: list[str], unknown: list[str], version: str
) -> Finding | None:
    """Notes on settings of which each is in some release and all are in none: the launch is for a checkout between two releases."""
    from rlstep_hooks.judge.rules.plan_checks import between_releases

    names = [name for name in names if known.ever(name)]
    if known.releases_with(names):
        return None
    one = unknown[0]
    other = next((name for name in names if known.has(name, version) and not known.releases_with([name, one])), None)
    having = {name: runs_of(known.releases_with([name]), known.releases) for name in (one, other) if name is not None}
    apart = ", ".join(f"{name} is in {runs}" for name, runs in having.items())
    return between_releases(system.title, version, unknown, apart)


def _is_foreign(known: KeyList, name: str, version: str, given: Mapping[str, Setting]) -> bool:
    near = None if known.ever(name) else known.nearest(name, version)
    return not known.ever(name) and (near is None or near in given)


def _nearest_to_fork(system: System, known: KeyList, names: list[str]) -> str:
    """The release that has the most of a fork's settings; of several the oldest, but none before the newest of these settings came.

    A fork that had a newer release would use what is new in it.
    """
    releases = planned_releases(system)
    came = [first for name in names for first in known.releases_with([name])[:1]]
    newest = max((release_of(each) for each in came), default=release_of(releases[0]))
    return max(
        reversed(releases),
        key=lambda each: (
            sum(known.has(name, each) for name in names),
            release_of(each) >= newest,
            -releases.index(each),
        ),
    )


def _fork_note(system: System, version: str) -> Note:
    text = f"{system.title} {version}, the oldest release that has the fork's other settings; --version names another"
    return Note("assumes", text)


_HYDRAS = ("._target_", "._convert_", "._partial_", "._recursive_")
"""What Hydra itself reads in a section."""


def _of_own_program(
    system: System, known: KeyList, command: Command, given: Mapping[str, Setting], asked: str | None
) -> Release:
    """The release for a program of somebody's own, whose further settings show that it is a fork."""
    from rlstep_hooks.judge.rules.plan_checks import foreign_settings

    assert system.keys is not None
    names = [
        name
        for name, setting in given.items()
        if not (setting.deleted or setting.place.source in ("--set", "") or setting.place.source.endswith(".py"))
        and "." in name
        and not name.endswith(_HYDRAS)
        and not any(fnmatchcase(name, pattern) for pattern in system.keys.also)
        and not known.below_a_setting(name)
        and not known.is_section(name)
    ]
    foreign = tuple(name for name in names if not known.ever(name))
    names = [name for name in names if known.ever(name)]
    if not foreign:
        version = asked or _newest_that_accepts(system, known, names)
        return Release(version=version, notes=_notes(system, known, names, version, asked))
    version = asked or _nearest_to_fork(system, known, names)
    title = f"{system.title} {version}"
    notes = () if asked is not None else (_fork_note(system, version),)
    program = command.program.name
    finding = foreign_settings(title, [str(given[name]) for name in foreign], f"{program} is a program of its own.")
    return Release(version=version, notes=notes, findings=(finding,), foreign=foreign)


def planned_releases(system: System) -> tuple[str, ...]:
    """The releases that can be planned and that differ in their settings, ascending."""
    if system.releases is None or system.keys is None:
        return (system.version,)
    first, end = (release_of(each) for each in system.releases)
    return tuple(each for each in key_list(system.keys.file).releases if first <= release_of(each) < end)


def accepted_by_others(system: System, read: Callable[[str], object]) -> tuple[Note, ...]:
    """The releases that accept a launch which the assumed one refuses.

    Args:
        system: The system.
        read: Reads the launch for a release.
    """
    if system.keys is None:
        return ()
    accepted = []
    for release in planned_releases(system):
        with suppress(PlanError, LaunchError):
            read(release)
            accepted.append(release)
    if not accepted:
        return ()
    runs = runs_of(accepted, key_list(system.keys.file).releases)
    return (Note("assumes", f"accepted by {system.title} {runs}: --version {accepted[-1]} plans it so"),)


def _subject(
    keys: Keys, known: KeyList, command: Command, given: Mapping[str, Setting], keywords: frozenset[str]
) -> dict[str, Setting]:
    """The settings whose names the framework itself checks, by these names: of a file the first part, of a call the keyword."""
    strict = any(command.program.matches(pattern) for pattern in keys.strict)
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
        if not (
            any(fnmatchcase(checked, pattern) for pattern in keys.also)
            or known.below_a_setting(checked)
            or known.is_section(checked)
        ):
            found[checked] = setting
    return found


def _unknown(keys: Keys, known: KeyList, command: Command, subject: Mapping[str, Setting], version: str) -> list[str]:
    """The settings that a release does not have, and that nothing else takes."""
    return [
        name
        for name, setting in subject.items()
        if not known.has(name, version) and _said(keys, known, command, setting, version) is not None
    ]


def _said(keys: Keys, known: KeyList, command: Command, setting: Setting, version: str) -> Said | None:
    """What a release makes of a setting that it does not have."""
    if keys.abbreviated and is_flag(setting):
        options = meant_by(setting, known.of(version), dashed=keys.dashed)
        if len(options) > 1:
            return Said(f"error: ambiguous option: {setting} could match {', '.join(options)}")
    if keys.says:
        found: Said | None = named(keys.says)(command, setting, version)
        return found
    return Said(keys.refusal.format(name=setting.name, written=setting))


def _names_of(subject: Mapping[str, Setting], names: Iterable[str]) -> tuple[str, ...]:
    """The names of some settings, as they are checked and as the launch has them ("GRPOConfig.beta")."""
    return tuple(dict.fromkeys(each for name in names for each in (name, subject[name].name)))


def _newest_that_accepts(system: System, known: KeyList, names: list[str]) -> str:
    """The newest release that has the most of these settings."""
    releases = planned_releases(system)
    if all(known.has(name, system.version) for name in names):
        return system.version
    return max(releases, key=lambda each: (sum(known.has(name, each) for name in names), release_of(each)))


def _notes(system: System, known: KeyList, names: list[str], version: str, asked: str | None) -> tuple[Note, ...]:
    if asked is not None:
        return ()
    if version == system.version:
        return _newest(system)
    newer = next(name for name in names if not known.has(name, system.version) and known.has(name, version))
    accepted = [each for each in planned_releases(system) if all(known.has(n, each) for n in names if known.ever(n))]
    which = f"accepted by {runs_of(accepted, known.releases)}" if accepted else "no release accepts all settings"
    return (
        Note(
            "assumes",
            f"{system.title} {version}: {system.version} does not know {newer} ({which}); --version names another",
        ),
    )


def _added(system: System, known: KeyList, given: Mapping[str, Setting]) -> tuple[Note, ...]:
    """Notes on settings that Hydra adds and that no release has; of a copy, which has settings of its own, nothing is said."""
    if system.keys is not None and not system.keys.strict:
        return ()
    names = [
        f"+{setting.written}" + (f" (did you mean {near}?)" if (near := known.nearest(name, system.version)) else "")
        for name, setting in given.items()
        if setting.added and not known.ever(name) and not known.below_a_setting(name)
    ]
    if not names:
        return ()
    which = "them" if len(names) > 1 else "it"
    return (
        Note(
            "ignores", f"{', '.join(names)}: no release of {system.title} has {which}; what reads {which} is not known"
        ),
    )


def _newest(system: System) -> tuple[Note, ...]:
    if system.releases is None:
        return ()
    return (
        Note("assumes", f"{system.title} {system.version}, the newest release that is known; --version names another"),
    )


def _judged(
    release: Release, system: System, known: KeyList, command: Command, given: Mapping[str, Setting], unknown: list[str]
) -> Release:
    """The release, with what is to be said about settings that it does not have."""
    from rlstep_hooks.judge.rules.plan_checks import dropped_settings, foreign_settings, unknown_setting

    assert system.keys is not None
    findings: list[Finding] = []
    foreign: list[str] = []
    refused: list[str] = []
    dropped: dict[str, list[str]] = {}
    title = f"{system.title} {release.version}"
    for name in unknown:
        said = _said(system.keys, known, command, given[name], release.version)
        assert said is not None  # `_unknown` left those out
        near = known.nearest(name, release.version)
        if known.ever(name) and release.foreign:
            foreign.append(name)  # a fork has settings of several releases
            continue
        if known.ever(name):
            accepted = known.releases_with([name])
            remedy = f"accepted by {system.title} {runs_of(accepted, known.releases)}: --version {accepted[-1]}"
        elif near is not None and near not in given:
            remedy = f"did you mean {near}?"
        elif "ambiguous option" in said.words:
            remedy = "write the name in full"
        elif not said.refuses:
            dropped.setdefault(said.words, []).append(str(given[name]))
            continue
        else:
            foreign.append(name)
            continue
        refused.append(name)
        if said.refuses:
            findings.append(unknown_setting(title, said.words, str(given[name].place), remedy))
        else:
            findings.append(dropped_settings(title, [str(given[name])], said.words, remedy))
    findings += (dropped_settings(title, names, words, "take them out") for words, names in dropped.items())
    if foreign:
        shown = [str(given[name]) for name in foreign]
        said = _said(system.keys, known, command, given[foreign[0]], release.version)
        because = f"{title} itself ends the run: {said.words}" if said is not None else ""
        findings.append(foreign_settings(title, shown, because))
    return msgspec.structs.replace(
        release, findings=tuple(findings), refused=_names_of(given, refused), foreign=tuple(foreign)
    )


def looked_at(keys: Keys | None, settings: Iterable[Setting]) -> list[str]:
    """The settings among these that were read in the source: the schedule does not depend on them."""
    patterns = keys.no_effect if keys is not None else ()
    return [s.name for s in settings if any(fnmatchcase(s.name, pattern) for pattern in patterns)]
