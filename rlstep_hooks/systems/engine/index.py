"""Which program belongs to which system, as names and patterns: recognising a launch imports only the system that fits.

`index.json` is made from the declarations (`recognised`), in the order in which they are tried:

    python -m rlstep_hooks.systems.engine.index

Packages of others add systems by an entry point of the group `rlstep_hooks.systems`, whose name is the system's and whose value is its
`System`. They are looked at where no system of this package fits, or by `--framework`.
"""

from __future__ import annotations

from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.launch.wildcards import matches
from rlstep_hooks.systems.engine.entry import Entry, named
from rlstep_hooks.systems.engine.links import facts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet
    from importlib.metadata import EntryPoint
    from types import ModuleType

    from rlstep_hooks.judge.deviations import Deviation
    from rlstep_hooks.judge.settings import Knob
    from rlstep_hooks.launch.command import Command, Program
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.systems.engine.declaration import System
    from rlstep_hooks.systems.engine.links import Deployment

GROUP = "rlstep_hooks.systems"
"""The entry points of other packages."""
_HOMES = ("rlstep_hooks.systems", "rlstep_hooks.systems.planned")
"""The packages in which systems have their homes: those that are observed, and those that are only planned."""
_FILE = Path(__file__).with_name("index.json")


@lru_cache(maxsize=1)
def entries() -> tuple[Entry, ...]:
    """How the systems of this package are recognised; special entries come before general ones."""
    return msgspec.json.decode(_FILE.read_bytes(), type=tuple[Entry, ...])


def entries_of(name: str) -> tuple[Entry, ...]:
    """How one system is recognised.

    Raises:
        LaunchError: There is none of that name.
    """
    own = tuple(entry for entry in entries() if entry.name == name)
    return own or system_of(name).recognised


def system_of(name: str) -> System:
    """A system by its name.

    Raises:
        LaunchError: There is none of that name, or the package that has it cannot be loaded.
    """
    if any(entry.name == name for entry in entries()):
        system: System = home_of(name).SYSTEM
        return system
    if name not in _others():
        near = get_close_matches(name.lower(), names(), n=1)
        meant = f"did you mean {near[0]}? There are" if near else "there are"
        raise LaunchError(f"there is no framework {name!r}; {meant} {', '.join(sorted(names()))}")
    return _loaded(_others()[name])


def home_of(name: str) -> ModuleType:
    """The module with the declaration of a system of this package: its own file, or `system.py` in its folder. Folders of systems that
    are only planned are below `planned`."""
    observed = any(entry.observed for entry in entries() if entry.name == name)
    module = import_module(f"{_HOMES[0] if observed else _HOMES[1]}.{name}")
    return import_module(f"{module.__name__}.system") if hasattr(module, "__path__") else module


def exists(name: str) -> bool:
    """Whether there is a system of that name."""
    return any(entry.name == name for entry in entries()) or name in _others()


def names() -> list[str]:
    """All systems, those of other packages last."""
    own = (entry.name for entry in entries() if entry.programs or entry.keys or entry.calls)
    return list(dict.fromkeys((*own, *_others())))


def observed() -> list[System]:
    """The systems whose runs are observed, those of other packages last."""
    own = [home_of(entry.name).SYSTEM for entry in entries() if entry.observed]
    return own + [system for system in _others_loaded() if system.attaches_by]


def live() -> Iterator[Callable[..., Schedule | None]]:
    """The functions that plan live configurations and trainers, one for each system that can."""
    for entry in entries():
        if entry.live:
            yield named(entry.live)
    yield from (named(system.live) for system in _others_loaded() if system.live)


def deviations_of(framework: str, version: str) -> tuple[Deviation, ...]:
    """The known deviations of one release of a framework, by its name in a Schedule. Loads data, never the framework."""
    places = [entry.deviations[framework] for entry in entries() if framework in entry.deviations]
    others = (system for system in _others_loaded() if framework == (system.framework or system.title))
    places += [system.deviations for system in others if system.deviations]
    found: tuple[Deviation, ...] = sum((named(place) for place in places), ())
    return tuple(deviation for deviation in found if deviation.concerns(version))


def link_facts(name: str, deployment: Iterable[Deployment] = ()) -> dict[str, dict[str, str]]:
    """What a run of this system says of the links that are not compared in it. Loads data, never the framework.

    Args:
        name: The system.
        deployment: What sets the deployment of the run apart from the one in which all of the system was proved.
    """
    system = system_of(name)
    return facts_of(system.links, system.rules, deployment)


def knobs_of(schedule: Schedule | None) -> Mapping[Knob, str]:
    """What settings are called in the system that made a plan, by its name and its algorithm there. Loads data, never the framework."""
    if schedule is None:
        return {}
    found = [system for system in observed() if schedule.framework == (system.framework or system.title)]
    # Several trainers of one framework have plans of one name: the one whose settings the plan has.
    return max((system.knobs for system in found), key=lambda knobs: _known(knobs, schedule), default={})


def _known(knobs: Mapping[Knob, str], schedule: Schedule) -> int:
    return sum(name in schedule.settings for name in knobs.values())


@lru_cache(maxsize=1)
def _others() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def _loaded(point: EntryPoint) -> System:
    try:
        system: System = point.load()
    except Exception as error:
        raise LaunchError(f"the system {point.name!r} ({point.value}) cannot be loaded: {error}") from error
    return system


def recognise(
    command: Command,
    keys: Iterable[str],
    values: Mapping[str, str] | None = None,
    packages: Mapping[str, str] | None = None,
) -> str | None:
    """The system that a command belongs to, or None.

    Args:
        command: The command.
        keys: Names of the settings that it gives, in arguments and configuration files ("Callee.keyword" in Python files).
        values: Values of settings, as they were written.
        packages: Callee -> package that a Python file imports it from.
    """
    given = {**dict.fromkeys(keys, ""), **(values or {})}
    packages = packages or {}
    return _recognised(entries(), command, given, packages) or _recognised_by_others(command, given, packages)


def told_by(name: str, command: Command, keys: Iterable[str], values: Mapping[str, str]) -> dict[str, str]:
    """The settings by whose values alone a command is a system's; empty where its program or its settings say so.

    Args:
        name: The system that was recognised.
        command: The command.
        keys: Names of the settings that it gives.
        values: Values of settings, as they were written.
    """
    given = {**dict.fromkeys(keys, ""), **values}
    for entry in entries_of(name):
        if _has_settings(entry, given) and any(command.program.matches(pattern) for pattern in entry.programs):
            return {key: given[key] for key in entry.with_value}
    return {}


def has_program(program: Program) -> bool:
    """Whether some system names a program as its own."""
    return any(program.matches(pattern) for entry in entries() for pattern in entry.programs)


def has_module(program: Program) -> bool:
    """Whether a program is a module that some system names as its own."""
    return program.kind == "module" and has_program(program)


def relatives(name: str) -> list[str]:
    """The forks and relatives of a system, whose launches would be taken for its own."""
    return list(dict.fromkeys(entry.name for entry in entries() if entry.before == name))


def _recognised(
    candidates: Iterable[Entry], command: Command, given: Mapping[str, str], packages: Mapping[str, str]
) -> str | None:
    candidates = tuple(candidates)
    for entry in candidates:
        if not _has_settings(entry, given):
            continue
        patterns = [pattern for pattern in entry.programs if command.program.matches(pattern)]
        if patterns:
            anybodys = all(pattern.startswith("script:") and "/" not in pattern for pattern in patterns)
            return (_imported(candidates, given, packages) if anybodys else None) or entry.name
    if command.program.kind == "executable":
        return None
    return _by_settings(candidates, given, packages)


def _has_settings(entry: Entry, given: Mapping[str, str]) -> bool:
    """Whether a command has the settings, and the values of them, that a program alone does not say."""
    if (entry.with_key and entry.with_key not in given) or not given.keys().isdisjoint(entry.never):
        return False
    return all(matches(given.get(name, "").lower(), like) for name, like in entry.with_value.items())


def _imported(candidates: Iterable[Entry], given: Mapping[str, str], packages: Mapping[str, str]) -> str | None:
    """The system that a file imports its trainer from: anybody may call a script train_ppo.py, and its imports say more."""
    imported = {key: value for key, value in given.items() if key.partition(".")[0] in packages}
    return _by_settings((entry for entry in candidates if entry.packages), imported, packages)


def _by_settings(candidates: Iterable[Entry], given: Mapping[str, str], packages: Mapping[str, str]) -> str | None:
    """The first system that has one of the settings, or one of whose classes is called."""
    for entry in candidates:
        if entry.beside and entry.beside not in packages.values():
            continue
        own: AbstractSet[str] = given.keys()
        if entry.packages:
            # What a file does not import is the name of the more general system's.
            unsaid = "" if entry.before else entry.packages[0]
            own = {key for key in given if packages.get(key.partition(".")[0], unsaid) in entry.packages}
        if not own.isdisjoint(entry.keys) or (
            entry.calls and {key.partition(".")[0] for key in own}.intersection(entry.calls)
        ):
            return entry.name
    return None


def _others_loaded() -> Iterator[System]:
    for point in _others().values():
        with suppress(LaunchError):  # somebody else's package is broken; `--framework` says how
            yield _loaded(point)


def _recognised_by_others(command: Command, given: Mapping[str, str], packages: Mapping[str, str]) -> str | None:
    found = (_recognised(system.recognised, command, given, packages) and system.name for system in _others_loaded())
    return next((name for name in found if name), None)


# Making the index.


def collected() -> tuple[Entry, ...]:
    """The entries as the declarations say them now: in the order of the index, new ones before the system that they name."""
    from pkgutil import iter_modules

    files = {
        found.name: f"{home}.{found.name}{'.system' * found.ispkg}"
        for home in _HOMES
        for found in iter_modules(import_module(home).__path__)
    }
    modules = (import_module(path) for path in files.values() if find_spec(path) is not None)
    declared = {module.SYSTEM.name: _entries_of(module.SYSTEM) for module in modules if hasattr(module, "SYSTEM")}
    made: list[Entry] = []
    for name in dict.fromkeys(entry.name for entry in entries()):
        if name in files:
            made += declared.pop(name, ()) or (entry for entry in entries() if entry.name == name)
    for recognised in declared.values():
        before = next((i for i, entry in enumerate(made) if entry.name == recognised[0].before), len(made))
        made[before:before] = recognised
    return tuple(made)


def _entries_of(system: System) -> tuple[Entry, ...]:
    first, *more = system.recognised or (Entry(system.name),)
    deviations = {system.framework or system.title: system.deviations} if system.deviations else {}
    filled = msgspec.structs.replace(
        first,
        observed=bool(system.attaches_by),
        live=system.live,
        on_import=system.on_import,
        deviations=deviations,
    )
    return filled, *more


def text_of(found: Iterable[Entry]) -> str:
    """Entries as `index.json` has them: one on each line."""
    return "[\n" + ",\n".join(msgspec.json.encode(entry).decode() for entry in found) + "\n]\n"


if __name__ == "__main__":
    from rlstep_hooks.systems.engine import index

    _FILE.write_text(index.text_of(index.collected()), encoding="utf-8")
