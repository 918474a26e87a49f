"""For which release a launch is planned, and which of its settings no release has.

The framework's own settings decide: Hydra refuses an override of a key that its configuration does not have (but for `+key=`), and
argparse a flag that it does not know. So a launch that gives settings of an older release only is one of that release; a setting that
no release has is a misspelling, or the launch is one of a fork.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.rules.plan.configuration import ForeignSettings, Refused, SettingsWithoutEffect
from rlstep_hooks.launch.command import Command
from rlstep_hooks.launch.settings import Setting
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.launch.wildcards import matches
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.engine.abbreviations import is_flag, meant_by
from rlstep_hooks.systems.engine.checked import checked_settings, is_taken, of_own_program
from rlstep_hooks.systems.engine.declaration import Keys, System
from rlstep_hooks.systems.engine.entry import named
from rlstep_hooks.systems.engine.installed import planned_here
from rlstep_hooks.systems.engine.keys import KeyList, key_list, parents_of, runs_of
from rlstep_hooks.systems.engine.limited_settings import release_without_list
from rlstep_hooks.systems.engine.parts import Said
from rlstep_hooks.systems.engine.planned_release import Pinned, Release
from rlstep_hooks.systems.engine.removed_values import RemovedValues
from rlstep_hooks.systems.engine.request import release_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rlstep_hooks.planning.finding import Finding


def release_for(
    system: System,
    command: Command,
    given: Mapping[str, Setting],
    asked: str | None,
    *,
    pinned: Pinned | None = None,
    keywords: frozenset[str] = frozenset(),
) -> Release:
    """The release for a launch: the one asked for, else the one that is pinned, else the newest that accepts the names of its settings.

    Args:
        system: The system.
        command: The command.
        given: What the launch sets.
        asked: The release that the user names.
        pinned: The release that the checkout installs.
        keywords: Names ("Callee.keyword") that the framework's own classes are given in a Python file.
    """
    if system.keys is None:
        return release_without_list(system, given, asked, pinned, _newest(system))
    known = key_list(system.keys.file)
    if system.keys.forked and not any(command.program.matches(pattern) for pattern in system.keys.strict):
        checked = of_own_program(system.keys, known, given)
        return _Names(system, system.keys, known, command, given, checked, pinned).release_of_own_program(asked)
    checked = checked_settings(system.keys, known, command, given, keywords)
    return _Names(system, system.keys, known, command, given, checked, pinned).release(asked)


class _Names(msgspec.Struct, frozen=True, dict=True):
    """The settings of a launch whose names somebody checks, beside the names that each release has."""

    system: System
    keys: Keys
    known: KeyList
    command: Command
    given: Mapping[str, Setting]
    checked: Mapping[str, Setting]
    """Settings by the names that are checked: of a file the first part, of a call the keyword."""
    pinned: Pinned | None = None
    """The release that the checkout installs."""

    def release(self, asked: str | None) -> Release:
        """The release of a launch of the framework's own program."""
        known = self.known
        version = asked or self._newest_that_accepts()
        unknown = self._unknown(version)
        notes = self._notes(version, asked)
        forked = asked is None and self.keys.forked and any(self._is_foreign(name, version) for name in unknown)
        if forked and self.pinned is None:
            version = self._nearest_to_fork()
            unknown = self._unknown(version)
            notes = (self._fork_note(version),)
            forked = not all(known.ever(name) for name in unknown)
        added = self._added()
        if asked is None and unknown and all(known.ever(name) for name in unknown):
            listed = [name for name in self.checked if known.ever(name)]
            if not known.releases_with(listed):
                finding = self._between_releases(version, listed, list(unknown))
                return Release(version=version, notes=notes, findings=(finding,), refused=self._both_names(unknown))
        judged = self._judged(version, notes, unknown, asked, forked=forked)
        if asked is not None or self.pinned is not None:
            # Without either a copy beside the launch may be of before that; what it refuses is read in it.
            findings = (*self._removed.findings(self.system.title, version), *judged.findings)
            judged = msgspec.structs.replace(judged, findings=findings)
        if not added:
            return judged
        return msgspec.structs.replace(
            judged,
            findings=(*judged.findings, self._added_by_nobody(version, added)),
            foreign=(*judged.foreign, *(setting.name for setting in added)),
        )

    def release_of_own_program(self, asked: str | None) -> Release:
        """The release for a program of somebody's own, whose further settings show that it is a fork."""
        foreign = tuple(name for name in self.checked if not self.known.ever(name))
        if not foreign:
            version = asked or self._newest_that_accepts()
            return Release(version=version, notes=self._notes(version, asked))
        # What Hydra adds, any release takes.
        forked = not all(self.checked[name].added for name in foreign)
        version = asked or (self._nearest_to_fork() if forked and self.pinned is None else self._newest_that_accepts())
        notes = (
            (self._fork_note(version),)
            if forked and asked is None and self.pinned is None
            else self._notes(version, asked)
        )
        finding = self._foreign(version, foreign, f"{self.command.program.name} is a program of its own.", asked)
        return Release(version=version, notes=notes, findings=(finding,), foreign=foreign)

    def release_in_checkout(self, release: Release, names: Iterable[str], open_ended: frozenset[str]) -> Release:
        """The release, with what is said of names that a checkout's own configuration does not have."""
        has = frozenset(names)
        sections = frozenset(section for name in has for section in parents_of(name))
        refused = [
            name
            for name in self.checked
            if not (name in has or name in sections or not open_ended.isdisjoint(parents_of(name)))
        ]
        findings = [self._refused_in_checkout(name) for name in refused]
        added = [setting for setting in self._added() if setting.name not in has]
        if added:
            findings.append(self._added_by_nobody(release.version, added))
        return msgspec.structs.replace(
            release,
            findings=tuple(findings),
            refused=self._both_names(refused),
            foreign=tuple(setting.name for setting in added),
        )

    def _refused_in_checkout(self, name: str) -> Finding:
        setting = self.checked[name]
        return Refused.planned(
            expected="settings of the configuration in the checkout",
            observed=self.keys.refusal.format(name=setting.name, written=setting),
            why=f"{setting.place}: the checkout that the launch lies in ends the run with this error at once",
            fix="take it out" + (", or add it with + where the code reads it" if self.system.overrides else ""),
        )

    # Which release it is.

    def _newest_that_accepts(self) -> str:
        """The release that is pinned, else the newest that has the most of these settings."""
        if self.pinned is not None:
            return self.pinned.version
        if self._had_by(self.system.version) == len(self.checked) and not self._removed.until:
            return self.system.version
        releases = planned_releases(self.system)
        best = max(releases, key=lambda each: (self._had_by(each), release_of(each)))
        taking = [
            each for each in releases if not self._removed.refused_by(each) and self._had_by(each) == self._had_by(best)
        ]
        return taking[-1] if taking else best

    @cached_property
    def _removed(self) -> RemovedValues:
        """The settings of the launch with values that some releases do not take any more."""
        return RemovedValues(self.keys, self.given)

    def _nearest_to_fork(self) -> str:
        """The release that has the most of a fork's settings; of several the oldest, but none before the newest of these settings came.

        A fork that had a newer release would use what is new in it.
        """
        releases = planned_releases(self.system)
        came = [first for name in self.checked for first in self.known.releases_with([name])[:1]]
        newest = max((release_of(each) for each in came), default=release_of(releases[0]))
        return max(
            reversed(releases),
            key=lambda each: (self._had_by(each), release_of(each) >= newest, -releases.index(each)),
        )

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return self.known.numbers_of(self.checked)

    def _had_by(self, release: str) -> int:
        """How many of the settings a release has."""
        return self._numbers[self.known.listed(release)]

    def _is_foreign(self, name: str, version: str) -> bool:
        """Whether no release has a setting, and it is no misspelling of one."""
        near = None if self.known.ever(name) else self.known.nearest(name, version)
        return not self.known.ever(name) and (near is None or near in self.given)

    # What it makes of the names.

    def _unknown(self, version: str) -> dict[str, Said]:
        """The settings that a release does not have and that nothing else takes, and what it makes of each."""
        names = (name for name in self.checked if not self.known.has(name, version))
        said = {name: self._said(self.checked[name], version) for name in names}
        return {name: each for name, each in said.items() if each is not None}

    def _said(self, setting: Setting, version: str) -> Said | None:
        if self.keys.abbreviated and is_flag(setting):
            options = meant_by(setting, self.known.of(version), dashed=self.keys.dashed)
            if len(options) > 1:
                return Said(f"error: ambiguous option: {setting} could match {', '.join(options)}")
        if self.keys.says:
            found: Said | None = named(self.keys.says)(self.command, setting, version)
            return found
        return Said(self.keys.refusal.format(name=setting.name, written=setting))

    def _judged(
        self, version: str, notes: tuple[Note, ...], unknown: Mapping[str, Said], asked: str | None, *, forked: bool
    ) -> Release:
        """The release, with what is to be said about settings that it does not have."""
        known, title = self.known, f"{self.system.title} {version}"
        findings: list[Finding] = []
        foreign: list[str] = []
        refused: list[str] = []
        dropped: dict[str, list[str]] = {}
        for name, said in unknown.items():
            setting = self.checked[name]
            near = None if known.ever(name) else known.nearest(name, version)
            if known.ever(name) and forked:
                foreign.append(name)  # a fork has settings of several releases
                continue
            if known.ever(name):
                accepted = known.releases_with([name])
                runs = runs_of(accepted, known.releases)
                remedy = f"accepted by {self.system.title} {runs}: --version {accepted[-1]}"
            elif near is not None and near not in self.checked:
                remedy = f"did you mean {near}?"
            elif "ambiguous option" in said.words:
                remedy = "write the name in full"
            elif not said.refuses:
                dropped.setdefault(said.words, []).append(str(setting))
                continue
            else:
                foreign.append(name)
                continue
            refused.append(name)
            if said.refuses:
                why = f"{setting.place}: {title} ends the run with this error at once"
                findings.append(
                    Refused.planned(expected=f"settings of {title}", observed=said.words, why=why, fix=remedy)
                )
            else:
                findings.append(_dropped(title, [str(setting)], said.words, remedy))
        findings += (_dropped(title, names, words, "take them out") for words, names in dropped.items())
        if foreign:
            because = f"{title} itself ends the run: {unknown[foreign[0]].words}"
            findings.append(self._foreign(version, foreign, because, asked))
        return Release(
            version=version,
            notes=notes,
            findings=tuple(findings),
            refused=self._both_names(refused),
            foreign=tuple(foreign),
        )

    def _both_names(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names of some settings, as they are checked and as the launch has them ("GRPOConfig.beta")."""
        return tuple(dict.fromkeys(each for name in names for each in (name, self.checked[name].name)))

    # What is said about them.

    def _between_releases(self, version: str, listed: list[str], unknown: list[str]) -> Finding:
        """The finding that each setting is in some release and all are in none: the launch is for a checkout between two releases."""
        known, one = self.known, unknown[0]
        having = [name for name in listed if known.has(name, version) and not known.releases_with([name, one])]
        runs = {name: runs_of(known.releases_with([name]), known.releases) for name in (one, *having[:1])}
        apart = ", ".join(f"{name} is in {each}" for name, each in runs.items())
        title = self.system.title
        return ForeignSettings.planned(
            expected=f"settings of one release of {title}",
            observed=", ".join(unknown),
            why=f"no release has all settings of this launch ({apart}): it is written for a checkout between releases, whose code was "
            f"not read. {title} {version} itself ends the run at these",
            fix="compare the plan with the trainer of that checkout, or take the settings out",
            severity="warning",
        )

    def _foreign(self, version: str, foreign: Sequence[str], because: str, asked: str | None) -> Finding:
        """Say that no release has these settings; `because` is how the framework refuses them, or what other program has them.

        An error where nobody says whose numbers are asked for: those of the release may be none of the fork's.
        """
        shown = [str(self.checked[name]) for name in foreign]
        title = f"{self.system.title} {version}"
        as_it_is = f"; --version {version} plans it as {title} whatever it is" if asked is None else ""
        return ForeignSettings.planned(
            expected=f"settings of {title}",
            observed=", ".join(shown[:6]) + (f" and {len(shown) - 6} more" if len(shown) > 6 else ""),
            why=f"{because.rstrip('.')}. Where it runs, it is a fork, whose code was not read",
            fix=f"compare the plan with the fork's trainer, or take the settings out{as_it_is}",
            severity="error" if asked is None else "warning",
        )

    def _fork_note(self, version: str) -> Note:
        text = f"{self.system.title} {version}, the oldest release that has the fork's other settings; --version names another"
        return Note("assumes", text)

    def _notes(self, version: str, asked: str | None) -> tuple[Note, ...]:
        system, known = self.system, self.known
        if asked is not None:
            return ()
        if self.pinned is not None:
            return (self.pinned.note,)
        if version == system.version:
            return _newest(system)
        newer = next((n for n in self.checked if not known.has(n, system.version) and known.has(n, version)), None)
        if newer is None:
            named, until = next(iter(self._removed.until.items()))
            first = until.release
            text = f"{named}={until.value}, which {first} and later refuse; --version names another"
            return (Note("assumes", f"{system.title} {version}, the newest release that takes {text}"),)
        ever = sum(known.ever(name) for name in self.checked)
        accepted = [each for each in planned_releases(system) if self._had_by(each) == ever]
        which = f"accepted by {runs_of(accepted, known.releases)}" if accepted else "no release accepts all settings"
        text = f"{system.title} {version}: {system.version} does not know {newer} ({which}); --version names another"
        return (Note("assumes", text),)

    def _added(self) -> tuple[Setting, ...]:
        """Settings that Hydra adds, that no release has and that no code of the user's own is there to read; of a copy, which has
        settings of its own, nothing is said."""
        if not self.keys.strict or not any(self.command.program.matches(pattern) for pattern in self.keys.strict):
            return ()
        own = [pattern for pattern, code in self.keys.own_code.items() if code in self.given]
        return tuple(
            setting
            for name, setting in self.given.items()
            if setting.added
            and not (self.known.ever(name) or is_taken(self.keys, self.known, name))
            and not any(matches(name, pattern) for pattern in own)
        )

    def _added_by_nobody(self, version: str, added: Sequence[Setting]) -> Finding:
        """Hydra takes these settings, and no release reads them."""
        shown = [
            f"+{setting.written}"
            + (f" (did you mean {near}?)" if (near := self.known.nearest(setting.name, version)) else "")
            for setting in added
        ]
        which = "them" if len(added) > 1 else "it"
        return ForeignSettings.planned(
            expected=f"settings of {self.system.title} {version}",
            observed=", ".join(shown[:6]) + (f" and {len(shown) - 6} more" if len(shown) > 6 else ""),
            why=f"Hydra adds {which}, and no release of {self.system.title} has {which}. If something reads {which}, it is a fork, "
            "whose code was not read",
            fix="compare the plan with the fork's trainer, or take the settings out",
            severity="warning",
        )


def with_read_source(release: Release, given: Mapping[str, Setting]) -> Release:
    """The release of a launch beside which its source was read: what Hydra adds there is no sign of code that was not."""
    if not all(given[name].added for name in release.foreign if name in given):
        return release
    why = "Hydra adds them, and no release has them. The source beside the launch was read, and what decides in it is in the plan"
    findings = tuple(
        msgspec.structs.replace(each, severity="warning", why=why) if each.code == ForeignSettings.code else each
        for each in release.findings
    )
    return msgspec.structs.replace(release, findings=findings)


def _dropped(release: str, names: list[str], because: str, remedy: str) -> Finding:
    """The finding of settings that this release takes and drops; `because` is what in its source does so."""
    return SettingsWithoutEffect.planned(
        expected=f"settings of {release}",
        observed=", ".join(names),
        why=f"{release} does not have {'them' if len(names) > 1 else 'it'} and raises no error: {because}",
        fix=remedy,
    )


def _newest(system: System) -> tuple[Note, ...]:
    if system.releases is None:
        return ()
    return (
        Note("assumes", f"{system.title} {system.version}, the newest release that is known; --version names another"),
    )


def release_in_checkout(
    system: System,
    command: Command,
    given: Mapping[str, Setting],
    release: Release,
    names: Iterable[str],
    open_ended: frozenset[str],
    *,
    keywords: frozenset[str] = frozenset(),
) -> Release:
    """The release for a launch in a checkout whose own configuration is read: it decides which settings are accepted.

    Args:
        system: The system.
        command: The command.
        given: What the launch sets.
        release: The release whose lines the checkout has.
        names: The settings of that configuration.
        open_ended: Those that may have others below them.
        keywords: Names ("Callee.keyword") that the framework's own classes are given in a Python file.
    """
    assert system.keys is not None, "only a system with a list of settings has a checkout that is read"
    known = key_list(system.keys.file)
    if system.keys.forked and not any(command.program.matches(pattern) for pattern in system.keys.strict):
        own = of_own_program(system.keys, known, given)
        checked = {name: setting for name, setting in own.items() if not setting.added}
    else:
        checked = checked_settings(system.keys, known, command, given, keywords)
    return _Names(system, system.keys, known, command, given, checked).release_in_checkout(release, names, open_ended)


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


def planned_releases(system: System) -> tuple[str, ...]:
    """The releases that can be planned and that differ in their settings, ascending."""
    if system.releases is None or system.keys is None:
        return (system.version,)
    first, end = (release_of(each) for each in system.releases)
    return tuple(each for each in key_list(system.keys.file).releases if first <= release_of(each) < end)


def nearest_release(system: System, version: str, first: str, end: str) -> str:
    """The planned release between two that is nearest to another one, which is not.

    Args:
        system: The system.
        version: The release that is not planned.
        first: The first of them.
        end: The first that is none of them any more.
    """
    between = [each for each in planned_releases(system) if release_of(first) <= release_of(each) < release_of(end)]
    if not between:  # a release whose settings are those of another one
        return first
    return between[-1] if release_of(version) >= release_of(end) else between[0]


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
