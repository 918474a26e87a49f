"""Looks at what a trainer's reward functions get and give, while they are called."""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlstep_hooks.observe.guard import contained
from rlstep_hooks.systems.trl.observe.given_rewards import Asked, GivenRewards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rlstep_hooks.session.recorder import Recorder

_SAMPLES = ("completion_ids", "completions", "prompts")
"""What a function gets of each sample, beside the columns of its row."""


class RewardFunctions:
    """Looks at a trainer's reward functions while they are called; between the calls the trainer has its own.

    Models are not looked at.

    Args:
        trainer: The trainer.
        asked: Reads what a function is asked about from its arguments.
        awaits_objects: Whether the trainer awaits objects whose `__call__` is a coroutine, as it awaits functions that are.
    """

    def __init__(
        self,
        trainer: Any,
        recorder: Recorder,
        asked: Callable[[tuple[Any, ...], dict[str, Any]], Asked] | None = None,
        *,
        awaits_objects: bool = False,
    ) -> None:
        self._trainer = trainer
        self._asked = asked or _asked
        self._awaits_objects = awaits_objects
        self.recorder = recorder
        """Learns what is not observed."""

    @contextlib.contextmanager
    def seen(self) -> Iterator[GivenRewards]:
        """A call of `_calculate_rewards`, which takes the functions from `reward_funcs` (0.20 to 1.16.0)."""
        own = self._trainer.reward_funcs
        given = GivenRewards(len(own), {}, {})
        self._trainer.reward_funcs = [self._seen(function, place, given) for place, function in enumerate(own)]
        try:
            yield given
        finally:
            self._trainer.reward_funcs = own

    def _seen(self, function: Any, place: int, given: GivenRewards) -> Any:
        """A function that does what this one does, and shows it; the function itself where it cannot be looked at."""
        if not callable(function) or isinstance(function, torch.nn.Module):
            return function

        def call(*args: Any, **kwargs: Any) -> Any:
            self._asks(given, place, args, kwargs)
            result = function(*args, **kwargs)
            self._gives(given, place, result)
            return result

        async def call_later(*args: Any, **kwargs: Any) -> Any:
            self._asks(given, place, args, kwargs)
            result = await function(*args, **kwargs)
            self._gives(given, place, result)
            return result

        # TRL tells a coroutine by this up to 0.29, and looks into partial functions and `__call__` too in 1.16 (trainer/utils.py
        # `is_async_callable`). What only some releases await is left alone, since it must look to them as it did.
        later = inspect.iscoroutinefunction(function) or (self._awaits_objects and _may_be_awaited(function))
        seen: Any = call_later if later else call
        if seen is call and _may_be_awaited(function):
            return function
        seen.__name__ = getattr(function, "__name__", type(function).__name__)
        return seen

    @contained("rewards")
    def _asks(self, given: GivenRewards, place: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given.asked[place] = self._asked(args, kwargs)

    @contained("rewards")
    def _gives(self, given: GivenRewards, place: int, result: Any) -> None:
        values = _kept(result)
        if values is not None:
            given.columns[place] = values


def _may_be_awaited(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    called = function if inspect.isroutine(function) else type(function).__call__
    return inspect.iscoroutinefunction(called)


def _asked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Asked:
    samples = [kwargs.get(name) for name in _SAMPLES]
    tokens, texts, prompts = (list(of) if isinstance(of, list) else None for of in samples)
    texts = None if texts is None else [_copied(text) for text in texts]
    columns = {name: list(of) for name, of in kwargs.items() if name not in _SAMPLES and isinstance(of, list)}
    return Asked(tokens, texts, prompts, columns, tuple(map(id, samples)))


def _copied(text: Any) -> Any:
    """A completion, whose messages a function may write to."""
    is_conversation = isinstance(text, list) and all(isinstance(message, dict) for message in text)
    return [dict(message) for message in text] if is_conversation else text


def _kept(result: Any) -> list[Any] | Tensor | None:
    """A copy of what a function gave; None where looking at it would use it up."""
    if isinstance(result, Tensor):
        return result.detach().clone()
    if hasattr(result, "tolist"):  # arrays and columns of tables
        values = result.tolist()
        return values if isinstance(values, list) else None
    sized = hasattr(result, "__len__") and hasattr(result, "__iter__")
    return list(result) if sized else None
