"""What is compared of the calls of reward functions, without a training run."""

from __future__ import annotations

import asyncio
import functools
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl")

import numpy as np
import torch

from rlstep_hooks.systems.trl.observe.given_rewards import TEXTS, Asked, GivenRewards
from rlstep_hooks.systems.trl.observe.reward_functions import RewardFunctions


class NoGaps:
    def cannot(self, what: str, why: str) -> None:
        raise AssertionError(f"{what}: {why}")


def seen(*functions: Any, **asked: Any) -> tuple[GivenRewards, list[Any]]:
    """What is kept of one call of each function, and what the trainer gets."""
    trainer = SimpleNamespace(reward_funcs=list(functions))
    recorder: Any = NoGaps()
    with RewardFunctions(trainer, recorder).seen() as given:
        results = [function(**asked) for function in trainer.reward_funcs]
        results = [asyncio.run(result) if asyncio.iscoroutine(result) else result for result in results]
    assert trainer.reward_funcs == list(functions)
    return given, results


REWARDS = [1.5, 2.25]


async def awaited(**kwargs: Any) -> list[float]:
    return REWARDS


@pytest.mark.parametrize(
    "result",
    [REWARDS, tuple(REWARDS), np.array(REWARDS), np.array(REWARDS, dtype=np.float32), torch.tensor(REWARDS)],
    ids=["list", "tuple", "array", "float32", "tensor"],
)
def test_rewards_are_kept_whatever_holds_them(result: Any) -> None:
    given, (passed_on,) = seen(lambda **kwargs: result, completions=["a", "b"])
    assert passed_on is result
    kept = torch.tensor(REWARDS).unsqueeze(1)
    assert given.moved(kept, 0) == 0
    assert given.moved(kept.roll(1, 0), 0) == 2
    assert given.uncompared() == 0


def test_coroutines_are_waited_for_and_kept() -> None:
    given, (result,) = seen(awaited, completions=["a", "b"])
    assert result == REWARDS
    assert given.columns == {0: REWARDS}


def test_a_partial_coroutine_stays_one() -> None:
    given, (result,) = seen(functools.partial(awaited), completions=["a", "b"])
    assert result == REWARDS
    assert given.uncompared() == 0


def test_what_cannot_be_looked_at_counts_as_not_compared_and_is_not_used_up() -> None:
    class Waits:
        async def __call__(self, **kwargs: Any) -> list[float]:
            return REWARDS

    model, waits = torch.nn.Linear(1, 1), Waits()
    trainer = SimpleNamespace(reward_funcs=[model, waits])
    recorder: Any = NoGaps()
    with RewardFunctions(trainer, recorder).seen() as given:
        assert trainer.reward_funcs == [model, waits]
    assert given.uncompared() == 2
    given, (result,) = seen(lambda **kwargs: iter(REWARDS), completions=["a", "b"])
    assert list(result) == REWARDS
    assert given.uncompared() == 1


def test_texts_of_several_messages_count_as_not_compared() -> None:
    turns = [[{"role": "assistant", "content": "a"}, {"role": "tool", "content": "1"}]]
    given, _ = seen(lambda **kwargs: [1.0], completions=turns, completion_ids=[[1]])
    assert given.uncompared() == 1


def test_columns_and_prompts_are_those_of_the_rows() -> None:
    rows = [{"prompt": "p", "answer": 1}, {"prompt": "q", "answer": 2}, {"prompt": "r", "answer": 2}]

    def wrong(answers: list[int], prompts: list[str]) -> int:
        given, _ = seen(lambda **kwargs: [0.0] * 3, prompts=prompts, answer=answers, trainer_state=object())
        return given.of_other_rows(rows, prompts=True)

    assert wrong([1, 2, 2], ["p", "q", "r"]) == 0
    assert wrong([2, 1, 2], ["p", "q", "r"]) == 2
    assert wrong([1, 2, 2], ["p", "r", "q"]) == 2


def test_values_that_cannot_be_compared_are_no_difference() -> None:
    rows = [{"image": np.zeros(3), "score": float("nan")}]
    given, _ = seen(lambda **kwargs: [0.0], image=[np.zeros(3)], score=[float("nan")])
    assert given.of_other_rows(rows, prompts=False) == 0


def test_all_functions_are_asked_about_the_same() -> None:
    texts = ["a", "b", "c"]
    first = Asked(None, texts, None, {}, (0, 1, 2))
    same_list_rolled = Asked(None, ["b", "c", "a"], None, {}, (0, 1, 2))
    same_list_rewritten = Asked(None, ["A", "B", "C"], None, {}, (0, 1, 2))
    other_list = Asked(None, ["A", "b", "c"], None, {}, (0, 3, 2))
    for later, wrong in ((first, 0), (same_list_rolled, 3), (same_list_rewritten, 0), (other_list, 1)):
        assert GivenRewards(2, {}, {0: first, 1: later}).asked_otherwise() == wrong


class Letters:
    def decode(self, tokens: list[int], **settings: Any) -> str:
        return "".join(map(chr, tokens))


def test_all_texts_of_a_large_rollout_are_looked_at_in_turn() -> None:
    size = 3 * TEXTS
    tokens = [[97, 97 + place % 26, 97 + place // 26] for place in range(size)]
    texts = [Letters().decode(of) for of in tokens]
    texts[4] += "!"
    given = GivenRewards(1, {}, {0: Asked(tokens, texts, None)})
    found = [given.misplaced(Letters(), decoded=True, turn=turn) for turn in range(6)]
    assert found == [0, 1, 0, 0, 1, 0]
