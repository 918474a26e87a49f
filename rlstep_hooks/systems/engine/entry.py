"""How a system is recognised: what its declaration states and the index stores."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import msgspec


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one system is recognised; a system may have several."""

    name: str
    """Name of the system and of its module in `rlstep_hooks.systems`."""
    programs: tuple[str, ...] = ()
    """Patterns of `Program.matches`: "module:verl.trainer.main_ppo", "script:train_ppo_ray.py", "executable:trl grpo"."""
    keys: tuple[str, ...] = ()
    """Settings, any one of which identifies the system: for configuration files and for scripts with common names."""
    calls: tuple[str, ...] = ()
    """Classes or functions; a Python file of this system calls at least one of them."""
    packages: tuple[str, ...] = ()
    """Packages from which `calls`, and the callees of `keys`, are imported; empty if that does not matter."""
    beside: str = ""
    """A package that the file also imports from: one that changes the trainer of another."""
    with_key: str = ""
    """A setting that the launch must also have, if the program alone does not identify the system."""
    never: tuple[str, ...] = ()
    """Settings that launches of its programs never have: with one of them, a common name is that of somebody else's program."""
    with_value: dict[str, str] = {}
    """Settings that must have a value of this pattern (lower case), for forks that have no settings of their own."""
    before: str = ""
    """The system that would be recognised otherwise. This one is a fork or a relative of it and is tried first."""

    # What the index takes from the declaration, in a system's first entry.
    observed: bool = False
    """Whether runs of the system are observed, and not only planned."""
    live: str = ""
    """What `System.live` says."""
    on_import: dict[str, str] = {}
    """What `System.on_import` says."""
    deviations: dict[str, str] = {}
    """The system's name in a Schedule -> `System.deviations`."""


def named(place: str) -> Any:
    """What a declaration names as "module:name"."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
