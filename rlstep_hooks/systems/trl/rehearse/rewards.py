"""The user's reward functions in TRL, which calls each with all completions of a batch and the columns of their rows."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from rlstep_hooks.rehearse.rewards import Call, Watched, WrongRewardsError

if TYPE_CHECKING:
    from collections.abc import Sequence

_OWN = ("prompts", "completions", "completion_ids")
"""What TRL gives beside the columns, in this order."""


def watch(function: Any) -> Any:
    """A reward function that is watched; a reward model stays what it is."""
    if isinstance(function, str) or not callable(function) or hasattr(function, "parameters"):
        return function
    name = getattr(function, "__name__", type(function).__name__)
    watched = Watched(name, _rewards_of)
    coroutine = inspect.iscoroutinefunction(function)

    def call_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        given = dict(zip(_OWN, args, strict=False)) | kwargs
        completions = given.get("completions") or []
        rows = {key: value for key, value in given.items() if _is_of_rows(value, len(completions))}

        def ask(places: Sequence[int], texts: Sequence[str | None]) -> Any:
            chosen = {key: [value[place] for place in places] for key, value in rows.items()}
            pairs = zip(chosen["completions"], texts, strict=True)
            return function(**given | chosen | {"completions": [_with(old, text) for old, text in pairs]})

        columns = [value for key, value in rows.items() if key not in _OWN]
        return Call(completions=completions, columns=columns, ask=None if coroutine else ask)

    if coroutine:

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            call = call_of(args, kwargs)
            with watched.calling(call):
                found = await function(*args, **kwargs)
            watched.gave(call, found)
            return found

        return awaited

    def called(*args: Any, **kwargs: Any) -> Any:
        call = call_of(args, kwargs)
        with watched.calling(call):
            found = function(*args, **kwargs)
        watched.gave(call, found)
        return found

    functools.update_wrapper(called, function)
    called.__name__ = name
    return called


def _rewards_of(found: Any, wanted: int) -> list[float | None]:
    values = found.tolist() if hasattr(found, "tolist") else found
    if not isinstance(values, list | tuple):
        raise WrongRewardsError(f"returned {type(found).__name__}, not a list of {wanted} numbers")
    if len(values) != wanted:
        raise WrongRewardsError(f"returned {len(values)} numbers for {wanted} completions")
    try:
        return [None if value is None else float(value) for value in values]
    except (TypeError, ValueError):
        kinds = sorted({type(value).__name__ for value in values if value is not None})
        raise WrongRewardsError(f"returned a list of {' and '.join(kinds)}, not of numbers") from None


def _is_of_rows(value: Any, rows: int) -> bool:
    return isinstance(value, list) and len(value) == rows


def _with(completion: Any, text: str | None) -> Any:
    """A completion with another text, as a text or as a message."""
    if text is None:
        return completion
    return text if isinstance(completion, str) else [{"role": "assistant", "content": text}]
