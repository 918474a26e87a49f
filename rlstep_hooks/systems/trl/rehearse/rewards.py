"""The user's reward functions in TRL, which calls each with all completions of a batch and the columns of their rows."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
from typing import TYPE_CHECKING, Any

from rlstep_hooks.rehearse.asked.witnesses import Row
from rlstep_hooks.rehearse.rewards import Call, Watched, WrongRewardsError, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_OWN = ("prompts", "completions", "completion_ids")
"""What TRL gives beside the columns, in this order."""


def watch(function: Any, tokens_of: Callable[[str], list[int]] | None = None) -> Any:
    """A reward function that is watched; a reward model stays what it is.

    Args:
        function: It, a name, or a model.
        tokens_of: The tokens of a text, for functions that look at those; None where they are not known.
    """
    if isinstance(function, str) or not callable(function) or hasattr(function, "parameters"):
        return function
    name = getattr(function, "__name__", type(function).__name__)
    watched = Watched(name, _rewards_of, function=function)
    coroutine = _is_coroutine(function)

    def call_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        given = dict(zip(_OWN, args, strict=False)) | kwargs
        completions = given.get("completions") or []
        rows = {key: value for key, value in given.items() if _is_of_rows(value, len(completions))}

        def ask(places: Sequence[int], texts: Sequence[str | None]) -> Any:
            chosen = {key: [value[place] for place in places] for key, value in rows.items()}
            chosen["completions"] = [_with(old, text) for old, text in zip(chosen["completions"], texts, strict=True)]
            if tokens_of is not None and "completion_ids" in chosen:
                held = zip(chosen["completion_ids"], texts, strict=True)
                chosen["completion_ids"] = [old if text is None else tokens_of(text) for old, text in held]
            found = function(**given | chosen)
            return asyncio.run(found) if coroutine else found

        columns = [(key, value) for key, value in rows.items() if key not in _OWN]
        prompts = rows.get("prompts", [""] * len(completions))
        made = [
            Row(prompt=_text(prompt), columns=tuple((key, value[place]) for key, value in columns))
            for place, prompt in enumerate(prompts)
        ]
        return Call(completions=completions, rows=made, ask=ask, is_coroutine=coroutine)

    if coroutine:

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            call = call_of(args, kwargs)
            with watched.calling(call), timed() as seconds:
                found = await function(*args, **kwargs)
            watched.gave(call, found, seconds())
            return found

        return awaited

    def called(*args: Any, **kwargs: Any) -> Any:
        call = call_of(args, kwargs)
        with watched.calling(call), timed() as seconds:
            found = function(*args, **kwargs)
        watched.gave(call, found, seconds())
        return found

    functools.update_wrapper(called, function)
    called.__name__ = name
    return called


def _is_coroutine(function: Any) -> bool:
    """Whether TRL awaits it: an object whose `__call__` is a coroutine only in releases with `is_async_callable`, as 1.16."""
    try:
        from trl.trainer.utils import is_async_callable
    except ImportError:
        return inspect.iscoroutinefunction(function)
    return bool(is_async_callable(function))


def _rewards_of(found: Any, wanted: int) -> list[float | None]:
    values = found.tolist() if hasattr(found, "tolist") else found
    if not isinstance(values, list | tuple):
        raise WrongRewardsError(f"returned {type(found).__name__}, not a list of {wanted} numbers")
    if len(values) != wanted:
        raise WrongRewardsError(f"returned {len(values)} numbers for {wanted} completions")
    try:
        rewards = [None if value is None else float(value) for value in values]
    except (TypeError, ValueError):
        kinds = sorted({type(value).__name__ for value in values if value is not None})
        raise WrongRewardsError(f"returned a list of {' and '.join(kinds)}, not of numbers") from None
    # TRL makes NaN of None and leaves it out of the sum (grpo_trainer.py `_calculate_rewards`, 1.16).
    return [None if value is None or math.isnan(value) else value for value in rewards]


def _is_of_rows(value: Any, rows: int) -> bool:
    return isinstance(value, list) and len(value) == rows


def _with(completion: Any, text: str | None) -> Any:
    """A completion with another text, as a text or as a message."""
    if text is None:
        return completion
    return text if isinstance(completion, str) else [{"role": "assistant", "content": text}]


def _text(prompt: Any) -> str:
    """A prompt as a model would repeat it: the last message of a conversation."""
    if isinstance(prompt, str):
        return prompt
    last = prompt[-1].get("content") if isinstance(prompt, list) and prompt and isinstance(prompt[-1], dict) else ""
    return last if isinstance(last, str) else ""
