"""Settings that one launch gives as a flag and another as an argument of a call in a Python file."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlstep_hooks.launch.settings import Settings


def names_of(settings: Settings, key: str, *callees: str) -> tuple[str, ...]:
    """The names under which to read a setting: only the flag if it is given, because a script passes its flags on to calls.

    Args:
        settings: The launch.
        key: Name of the flag and of the call's argument.
        callees: Classes or functions that may take the argument ("PPOConfig" for `PPOConfig(batch_size=...)`).
    """
    if settings.is_given(key):
        return (key,)
    called = tuple(f"{callee}.{key}" for callee in callees)
    return (key, *(name for name in called if settings.is_given(name)))
