"""The release that the checkout around a launch installs: an exact pin, a range, or a commit between two releases."""

from __future__ import annotations

import os.path
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.checkout import find_checkout
from rlstep_hooks.launch.files import up_to_root
from rlstep_hooks.launch.pins import Pin, find_pins, is_project
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine.checked import checked_settings, of_own_program
from rlstep_hooks.systems.engine.keys import key_list
from rlstep_hooks.systems.engine.planned_release import Pinned
from rlstep_hooks.systems.engine.release import planned_releases
from rlstep_hooks.systems.engine.request import release_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import System

_SYSTEMS = Path(__file__).parents[1]
_BRANCHES = ("", "main", "master", "HEAD")
_SHORTEST, _DIGITS = 6, 8
_REMEDY = "--version names the release"


class Commits(msgspec.Struct, frozen=True):
    """A framework's commits, by the releases that they are like or lie between (`tests/golden/release_commits.py`)."""

    repositories: tuple[str, ...]
    tagged: dict[str, str]
    """Each release, ascending, with its own commit; without one where no clone was looked at."""
    between: dict[str, str]
    """The first eight digits of each commit, without a space between commits, by the one release ("0.15.2") or the two ("0.15.2
    0.16.0") that it is like or lies between."""

    deciding: dict[str, str] = {}
    """Each release, ascending, with the mark of its code that decides a schedule; empty where it is not kept."""

    def around(self, commit: str) -> tuple[str, ...]:
        """The release of a commit, or the two that it lies between; empty where it is not known."""
        start = commit[:_DIGITS].lower()
        own = next((release for release, name in self.tagged.items() if name.startswith(start)), None)
        if own is not None:
            return (own,)
        for releases, names in self.between.items():
            if any(names.startswith(start, place) for place in range(0, len(names), _DIGITS)):
                return tuple(releases.split())
        return ()


@lru_cache(maxsize=2)
def commits_of(file: str) -> Commits:
    """The list in a file below `rlstep_hooks/systems`, for example "trl/commits.json"."""
    return msgspec.json.decode((_SYSTEMS / file).read_bytes(), type=Commits)


def pinned_releases(
    system: System,
    command: Command,
    given: Mapping[str, Setting],
    folder: Path,
    source: Path | None,
    keywords: frozenset[str],
) -> tuple[Pinned, ...]:
    """The releases that the checkout may install, ascending; empty where it names none.

    Args:
        system: The system.
        command: The command.
        given: What the launch sets.
        folder: The folder that the launch lies in.
        source: The launch's own file.
        keywords: Names ("Callee.keyword") that the framework's own classes are given in a Python file.

    Raises:
        LaunchError: A version is pinned that is not known, or that does not have the settings of the launch.
    """
    package = system.pinned_package or system.package
    if not package or system.releases is None:
        return ()
    pins = find_pins(package, _folders(command, folder), source)
    # What a checkout of the framework itself installs for its own images and tests is not what runs.
    if not pins or _is_of(package, folder):
        return ()
    exact = [pin for pin in pins if pin.is_exact]
    fits = _Fitting(system, command, given, keywords)
    found: dict[str, Pinned] = {}
    meant: list[str] = []
    for pin in exact:
        for release in _releases(system, pin):
            found.setdefault(release, Pinned(release, _note(system, release, pin)))
            meant.append(str(pin))
    if found:
        # A file that names no program may have settings of a script's own.
        alone = command.program.kind == "config" and command.parser is None
        kept = [each for each in found.values() if alone or fits.has_most(each.version)]
        if (
            not kept and command.parser is not None
        ):  # its parser says what becomes of a setting that the release does not have
            kept = [*found.values()]
        if not kept:
            raise LaunchError(
                f"the checkout installs {system.title} {' or '.join(dict.fromkeys(meant))}, which does not have the settings of this "
                f"launch: {fits.newest()} does",
                remedy=_REMEDY,
            )
        return tuple(sorted(kept, key=lambda each: release_of(each.version)))
    return _in_ranges(system, [pin for pin in pins if not pin.is_exact], fits) if not exact else ()


def _is_of(package: str, folder: Path) -> bool:
    """Whether a launch lies in a checkout of the framework itself: a folder of its name may also hold what somebody joins to it."""
    module = package.replace("-", "_")
    copies = (copy.package for copy in find_checkout(f"{module}/__init__.py", [folder]))
    return is_project(package, folder) or any(
        (copy / "trainer").is_dir() or any((copy.parent / name).is_file() for name in ("pyproject.toml", "setup.py"))
        for copy in copies
    )


def _folders(command: Command, folder: Path) -> list[Path]:
    """Where the launch runs, if that is in the repository that it lies in, and where it lies."""
    root = [Path(os.path.abspath(folder)), *up_to_root(folder)][-1]
    current = Path(os.path.abspath(command.folder)) if command.folder else root
    return [current, folder] if current.is_relative_to(root) and current != root else [folder]


class _Fitting:
    """How many of a launch's settings a release has."""

    def __init__(
        self, system: System, command: Command, given: Mapping[str, Setting], keywords: frozenset[str]
    ) -> None:
        self._releases = planned_releases(system)
        self._known = None
        if system.keys is not None:
            self._known = key_list(system.keys.file)
            own = system.keys.forked and not any(command.program.matches(pattern) for pattern in system.keys.strict)
            names = (
                of_own_program(system.keys, self._known, given)
                if own
                else checked_settings(system.keys, self._known, command, given, keywords)
            )
            self._numbers = self._known.numbers_of(names)

    def _had_by(self, release: str) -> int:
        return self._numbers[self._known.listed(release)] if self._known is not None else 0

    def has_most(self, release: str) -> bool:
        """Whether no other release has more of them."""
        return self._had_by(release) == max(map(self._had_by, self._releases))

    def newest(self) -> str:
        """The newest release that has the most."""
        return next(release for release in reversed(self._releases) if self.has_most(release))


def _releases(system: System, pin: Pin) -> tuple[str, ...]:
    """The releases that a pin means: itself, or those that a commit lies between; empty where it is the newest.

    Raises:
        LaunchError: It is none that is known.
    """
    if not pin.repository:
        return (_planned(system, pin.constraint.removeprefix("=="), pin),)
    commits = commits_of(system.commits) if system.commits else None
    own = commits is not None and pin.repository.lower() in {name.lower() for name in commits.repositories}
    if own and pin.reference in _BRANCHES:
        return ()
    try:
        release_of(pin.reference)
    except LaunchError:
        found = commits.around(pin.reference) if commits is not None and own and len(pin.reference) >= _SHORTEST else ()
    else:
        found = (pin.reference.removeprefix("v"),) if own else ()
    if not found:
        raise LaunchError(f"the checkout installs {pin}, a copy of {system.title} that is not known", remedy=_REMEDY)
    return tuple(dict.fromkeys(_planned(system, release, pin) for release in found))


def _planned(system: System, version: str, pin: Pin) -> str:
    """A release as it is planned: where its series is listed by another release, that one.

    Raises:
        LaunchError: Its formulas are not known.
    """
    assert system.releases is not None, "only a system with several releases has pins"
    first, end = system.releases
    if not release_of(first) <= release_of(version) < release_of(end):
        raise _not_known(system, pin)
    if system.keys is None:
        return version
    known = key_list(system.keys.file)
    series = release_of(version)[:2]
    if version in known.releases or release_of(known.listed(version))[:2] == series:
        return version
    return next((each for each in known.releases if release_of(each)[:2] == series), version)


def _not_known(system: System, pin: Pin) -> LaunchError:
    assert system.releases is not None, "only a system with several releases has pins"
    first, end = system.releases
    return LaunchError(
        f"the checkout installs {system.title} {pin}, which is not known: {first} to before {end} are", remedy=_REMEDY
    )


def _in_ranges(system: System, pins: list[Pin], fits: _Fitting) -> tuple[Pinned, ...]:
    """The newest release within all ranges; empty where that is the one that is planned anyway, or where the settings say another.

    Raises:
        LaunchError: No release that is known is in a range; or the newest of a system's releases is not in it, and the others are not
            listed.
    """
    if not pins:
        return ()
    from packaging.specifiers import SpecifierSet  # only where there is a range to look at

    allowed = SpecifierSet(",".join(pin.constraint for pin in pins))
    newest = fits.newest() if system.keys is not None else system.version
    if allowed.contains(newest):
        return ()
    if system.keys is None and not system.commits:
        raise LaunchError(f"the checkout installs {system.title} {pins[0]}", remedy=_REMEDY)
    listed = (
        planned_releases(system) if system.keys is not None else _between(system, commits_of(system.commits).tagged)
    )
    # Where settings are not listed, the calls of a launch say which release it is written for, unless another package decides.
    for pin in pins if system.keys is not None or system.pinned_package else ():
        own = SpecifierSet(pin.constraint)
        if not any(own.contains(release) for release in listed):
            raise _not_known(system, pin)
    within = [release for release in listed if allowed.contains(release)]
    best = next((release for release in reversed(within) if fits.has_most(release)), None)
    if best is None:
        return ()
    return (Pinned(best, _note(system, best, pins[0])),)


def _between(system: System, releases: Iterable[str]) -> tuple[str, ...]:
    assert system.releases is not None, "only a system with several releases has pins"
    first, end = map(release_of, system.releases)
    return tuple(release for release in releases if first <= release_of(release) < end)


def _note(system: System, release: str, pin: Pin) -> Note:
    means = f"the checkout installs {pin}; --version names another"
    return Note("assumes", f"{system.title} {release}: {means}")
