"""Makes functions of the audit raise in the processes of a real run, and says which did.

What broke is written to the file that `RLSTEP_TEST_BROKEN` names, one name a line.
"""

from __future__ import annotations

import inspect
import itertools
import os
from typing import TYPE_CHECKING, Any

import wrapt

from rlstep_hooks.observe.guard import contained

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

VARIABLE = "RLSTEP_TEST_BROKEN"
CALL = "RLSTEP_TEST_BROKEN_CALL"
"""Which call of each function raises in each process, counted from 1; without it, every call."""
MESSAGE = "broken on purpose"


def break_function(module: str, name: str) -> None:
    """Make a function raise, once its module is imported; one that contains its own errors raises within."""
    at = int(os.environ.get(CALL, 0))
    calls = itertools.count(1)

    def broken(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        call = next(calls)
        if at and call != at:
            return wrapped(*args, **kwargs)
        if call == (at or 1):
            with open(os.environ[VARIABLE], "a") as file:
                file.write(name + "\n")
        raise RuntimeError(MESSAGE)

    def put(found: Any) -> None:
        owner, attribute, function = wrapt.resolve_path(found, name)
        topics = _topics_of(function)
        if topics is None:
            wrapt.wrap_function_wrapper(found, name, broken)
        else:
            wrapt.apply_patch(owner, attribute, contained(*topics)(wrapt.FunctionWrapper(function.__wrapped__, broken)))

    wrapt.when_imported(module)(put)


def break_method(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """Make a method of this process that contains its own errors raise within, at each call."""
    topics = _topics_of(getattr(owner, name))
    assert topics is not None, "it contains its own errors"

    @contained(*topics)
    def broken(observer: Any, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(MESSAGE)

    monkeypatch.setattr(owner, name, broken)


def _topics_of(function: Any) -> tuple[str, ...] | None:
    """The topics that a method costs which contains its own errors; None for any other function."""
    if not hasattr(function, "__wrapped__"):
        return None
    topics: tuple[str, ...] | None = inspect.getclosurevars(function).nonlocals.get("topics")
    return topics


def asking(file: Path, *, call: int | None = None) -> dict[str, str]:
    """The environment that breaks functions, at one call of each or at all."""
    return {VARIABLE: str(file)} | ({CALL: str(call)} if call else {})


def names_in(file: Path) -> set[str]:
    """The functions that raised."""
    return set(file.read_text().split())
