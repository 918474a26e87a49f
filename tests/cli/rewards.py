"""Reward functions called as each framework calls them, in a process that is the child of a rehearsal."""

from __future__ import annotations

import asyncio
import inspect
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from rlstep_hooks.systems.openrlhf.rehearse.rewards import watch as watch_openrlhf
from rlstep_hooks.systems.trl.rehearse.rewards import watch as watch_trl
from rlstep_hooks.systems.verl.rehearse.rewards import watch_custom

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Judge = Callable[[str, str], float]


class Sample(NamedTuple):
    """A completion in its row."""

    completion: str
    answer: str
    prompt: str = "1 + 1 = "


def in_trl(judge: Judge, samples: Sequence[Sample]) -> None:
    """TRL calls once with all completions, whose texts are in messages where the prompts are."""

    def reward(prompts: list[Any], completions: list[Any], answer: list[str], **kwargs: Any) -> list[float]:
        return [judge(each[0]["content"], right) for each, right in zip(completions, answer, strict=True)]

    in_trl_batch(reward, samples)


def in_trl_plain(judge: Judge, samples: Sequence[Sample]) -> None:
    """The same where prompts and completions are texts."""

    def reward(completions: list[str], answer: list[str], **kwargs: Any) -> list[float]:
        return [judge(each, right) for each, right in zip(completions, answer, strict=True)]

    in_trl_batch(reward, samples, messages=False)


def in_trl_awaited(judge: Judge, samples: Sequence[Sample]) -> None:
    """The same as a coroutine, in TRL's event loop."""

    async def reward(completions: list[Any], answer: list[str], **kwargs: Any) -> list[float]:
        await asyncio.sleep(0)
        return [judge(each[0]["content"], right) for each, right in zip(completions, answer, strict=True)]

    in_trl_batch(reward, samples)


def in_trl_batch(reward: Any, samples: Sequence[Sample], *, messages: bool = True) -> None:
    """A function of a whole batch, as TRL calls it."""

    def of(role: str, text: str) -> Any:
        return [{"role": role, "content": text}] if messages else text

    found = watch_trl(reward)(
        prompts=[of("user", each.prompt) for each in samples],
        completions=[of("assistant", each.completion) for each in samples],
        completion_ids=[[1] * len(each.completion) for each in samples],
        answer=[each.answer for each in samples],
        trainer_state=None,
    )
    if inspect.iscoroutine(found):
        asyncio.run(found)


def in_verl(judge: Judge, samples: Sequence[Sample]) -> None:
    """verl calls with one completion at a time, through a partial of its own."""

    def reward(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> dict[str, float]:
        return {"score": judge(solution_str, ground_truth)}

    function = verl_function(reward)
    for each in samples:
        call = {"data_source": "own", "solution_str": each.completion, "ground_truth": each.answer}
        function(**call, extra_info={"question": each.prompt})


def in_verl_awaited(judge: Judge, samples: Sequence[Sample]) -> None:
    """The same as a coroutine, in the loop of verl's reward worker."""

    async def reward(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
        await asyncio.sleep(0)
        return judge(solution_str, ground_truth)

    async def all_of_them() -> None:
        function = verl_function(reward)
        for each in samples:
            call = {"data_source": "own", "solution_str": each.completion, "ground_truth": each.answer}
            await function(**call, extra_info={"question": each.prompt})

    asyncio.run(all_of_them())


def verl_function(reward: Any) -> Any:
    """A function as verl's reward manager gets it."""

    async def awaited(raw: Any, **more: Any) -> Any:
        return await raw(**more)

    call = awaited if inspect.iscoroutinefunction(reward) else lambda raw, **more: raw(**more)
    module = SimpleNamespace(get_custom_reward_fn=lambda: partial(call, reward))
    watch_custom(module)
    return module.get_custom_reward_fn()


def in_openrlhf(judge: Judge, samples: Sequence[Sample]) -> None:
    """OpenRLHF calls with lists of one."""

    def reward(queries: list[str], prompts: list[str], labels: list[str]) -> dict[str, list[float]]:
        return {"rewards": [judge(queries[0][len(prompts[0]) :], labels[0])]}

    function = watch_openrlhf(reward)
    for each in samples:
        function([each.prompt + each.completion], [each.prompt], [each.answer])


every_framework = pytest.mark.parametrize("run", [in_trl, in_verl, in_openrlhf])
every_call = pytest.mark.parametrize(
    "run", [in_trl, in_trl_plain, in_trl_awaited, in_verl, in_verl_awaited, in_openrlhf]
)
