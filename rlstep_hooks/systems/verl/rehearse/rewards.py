"""The user's reward function and verl's own, which verl calls with one completion at a time, in its reward workers."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import wrapt

from rlstep_hooks.rehearse.asked.witnesses import Row
from rlstep_hooks.rehearse.messages import described, say
from rlstep_hooks.rehearse.rewards import Call, Watched, WrongRewardsError, timed

if TYPE_CHECKING:
    from collections.abc import Sequence

_QUESTIONS = ("question", "problem", "prompt", "query")
"""Columns in which rows keep the prompt besides the messages, which verl does not give to a reward function."""


def watch_custom(module: Any) -> None:
    """`verl.trainer.ppo.reward`: the function of `reward.custom_reward_function`."""
    wrapt.wrap_function_wrapper(module, "get_custom_reward_fn", _around_custom)


def watch_default(module: Any) -> None:
    """`verl.utils.reward_score`: verl's rules for the data sources that it knows."""
    watched = _watched("verl's rule")

    def around(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return _called(watched, wrapped, args, kwargs)

    wrapt.wrap_function_wrapper(module, "default_compute_score", around)


def _around_custom(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    try:
        function = wrapped(*args, **kwargs)
    except ImportError as error:
        say("reward", f"the reward function needs what is not here: {described(error)}", level="impossible")
        raise
    except Exception as error:
        say("reward", f"it cannot be loaded: {described(error)}", level="problem")
        raise
    if function is None:
        return None
    name = getattr(function.args[0], "__name__", "the reward function") if getattr(function, "args", None) else "reward"
    watched = _watched(name, function)
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "func", None)):

        async def awaited(*args: Any, **given: Any) -> Any:
            call = _call_of(function, args, given, is_coroutine=True)
            with watched.calling(call), timed() as seconds:
                found = await function(*args, **given)
            watched.gave(call, found, seconds())
            return found

        return awaited

    def called(*args: Any, **given: Any) -> Any:
        return _called(watched, function, args, given)

    return called


def _watched(name: str, function: Any = None) -> Watched:
    return Watched(name, _rewards_of, function=function, waits=True)


def _called(watched: Watched, function: Any, args: Any, given: dict[str, Any]) -> Any:
    call = _call_of(function, args, given)
    with watched.calling(call), timed() as seconds:
        found = function(*args, **given)
    watched.gave(call, found, seconds())
    return found


def _call_of(function: Any, args: Any, given: dict[str, Any], *, is_coroutine: bool = False) -> Call:
    if "solution_str" not in given:  # a manager of the user's own
        return Call(completions=[""])

    def ask(places: Sequence[int], texts: Sequence[str | None]) -> Any:
        # A copy: verl gives what a function changes in its row to that function alone.
        extra = {"extra_info": dict(given["extra_info"])} if isinstance(given.get("extra_info"), dict) else {}
        answer = given["solution_str"] if texts[0] is None else texts[0]
        found = function(*args, **{**given, **extra, "solution_str": answer})
        return asyncio.run(found) if is_coroutine else found

    extra = given.get("extra_info") or {}
    prompt = next((str(extra[name]) for name in _QUESTIONS if extra.get(name)), "") if isinstance(extra, dict) else ""
    row = Row(prompt=prompt, columns=(("ground_truth", given.get("ground_truth")),))
    return Call(completions=[given["solution_str"]], rows=[row], ask=ask, is_coroutine=is_coroutine)


def _rewards_of(found: Any, wanted: int) -> list[float | None]:
    if isinstance(found, dict) and "score" not in found:
        raise WrongRewardsError(f'returned a dict without "score": {sorted(found)}')
    score: Any = found["score"] if isinstance(found, dict) else found
    try:
        return [float(score)]  # numpy's, torch's
    except (TypeError, ValueError):
        raise WrongRewardsError(f"returned {type(score).__name__}, not a number") from None
