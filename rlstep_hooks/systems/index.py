"""Which program belongs to which system: names and patterns only, so that recognising a launch imports no system but the one that fits.

`index.json` is made of what the declarations say themselves (`recognised`), in the order in which they are tried:

    python -m rlstep_hooks.systems.index

Packages of others add systems by an entry point of the group `rlstep_hooks.systems`, whose name is the system's and whose value is its
`System`. They are looked at where no system of this package fits, or by `--framework`.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.text import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.metadata import EntryPoint

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.systems.declaration import System
    from rlstep_hooks.systems.reader import Reader

GROUP = "rlstep_hooks.systems"
"""The entry points of other packages."""
_FILE = Path(__file__).with_name("index.json")


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one system is recognised; a system may have several."""

    name: str
    """Name of the system and of its module in `rlstep_hooks.systems`."""
    programs: tuple[str, ...] = ()
    """Patterns of `Program.matches`: "module:verl.trainer.main_ppo", "script:train_ppo_ray.py", "executable:trl grpo"."""
    keys: tuple[str, ...] = ()
    """Settings of which one is enough to know the system: for configuration files and for scripts with common names."""
    calls: tuple[str, ...] = ()
    """Classes or functions of which a Python file calls one."""
    with_key: str = ""
    """A setting that must be there as well, where the program alone is not enough."""
    on_import: dict[str, str] = {}
    """How `rlstep run` attaches: module of the framework -> what is called with it once it is imported, "module:function". Of one
    entry of the system."""
    before: str = ""
    """The system that would be recognised otherwise: this one is a fork or a relative, and tried first."""


@lru_cache(maxsize=1)
def entries() -> tuple[Entry, ...]:
    """How the systems of this package are recognised, the more special before the more general."""
    return msgspec.json.decode(_FILE.read_bytes(), type=tuple[Entry, ...])


def entries_of(name: str) -> tuple[Entry, ...]:
    """How one system is recognised.

    Raises:
        LaunchError: There is none of that name.
    """
    own = tuple(entry for entry in entries() if entry.name == name)
    return own or getattr(reader_of(name), "recognised", ())


def reader_of(name: str) -> Reader | System:
    """A system by its name.

    Raises:
        LaunchError: There is none of that name, or the package that has it cannot be loaded.
    """
    home = f"rlstep_hooks.systems.{name}"
    if any(entry.name == name for entry in entries()):
        module = import_module(home)
        if hasattr(module, "SYSTEM"):
            system: System = module.SYSTEM
            return system
        observed_too = hasattr(module, "__path__")
        reader: Reader = (import_module(f"{home}.launch") if observed_too else module).READER
        return reader
    if name not in _others():
        raise LaunchError(f"there is no framework {name!r}; there are {', '.join(names())}")
    return _loaded(_others()[name])


def exists(name: str) -> bool:
    """Whether there is a system of that name."""
    return any(entry.name == name for entry in entries()) or name in _others()


def names() -> list[str]:
    """All systems, those of other packages last."""
    return list(dict.fromkeys((*(entry.name for entry in entries()), *_others())))


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


def recognise(command: Command, keys: Iterable[str]) -> str | None:
    """The system that a command belongs to, or None.

    Args:
        command: The command.
        keys: Names of the settings that it gives, in arguments and configuration files ("Callee.keyword" in Python files).
    """
    given = set(keys)
    return _recognised(entries(), command, given) or _recognised_by_others(command, given)


def _recognised(candidates: Iterable[Entry], command: Command, given: set[str]) -> str | None:
    candidates = tuple(candidates)
    callees = {key.partition(".")[0] for key in given}
    for entry in candidates:
        if entry.with_key and entry.with_key not in given:
            continue
        if any(command.program.matches(pattern) for pattern in entry.programs):
            return entry.name
    if command.program.kind == "executable":
        return None
    for entry in candidates:
        if given.intersection(entry.keys) or callees.intersection(entry.calls):
            return entry.name
    return None


def _recognised_by_others(command: Command, given: set[str]) -> str | None:
    for point in _others().values():
        try:
            found = _recognised(_loaded(point).recognised, command, given)
        except LaunchError:
            continue  # somebody else's package is broken; `--framework` says how
        if found is not None:
            return point.name
    return None


# Making the index.


def collected() -> tuple[Entry, ...]:
    """The entries as the declarations say them now: in the order of the index, new ones before the system that they name."""
    from pkgutil import iter_modules

    import rlstep_hooks.systems as home

    modules = (import_module(f"{home.__name__}.{found.name}") for found in iter_modules(home.__path__))
    declared = {module.SYSTEM.name: module.SYSTEM.recognised for module in modules if hasattr(module, "SYSTEM")}
    made: list[Entry] = []
    for name in dict.fromkeys(entry.name for entry in entries()):
        if name in declared or find_spec(f"{home.__name__}.{name}") is not None:
            made += declared.pop(name, None) or (entry for entry in entries() if entry.name == name)
    for recognised in declared.values():
        before = next(
            (i for i, entry in enumerate(made) if recognised and entry.name == recognised[0].before), len(made)
        )
        made[before:before] = recognised
    return tuple(made)


def text_of(found: Iterable[Entry]) -> str:
    """Entries as `index.json` has them: one on each line."""
    return "[\n" + ",\n".join(msgspec.json.encode(entry).decode() for entry in found) + "\n]\n"


if __name__ == "__main__":
    from rlstep_hooks.systems import index

    _FILE.write_text(index.text_of(index.collected()), encoding="utf-8")
