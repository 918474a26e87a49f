"""What a rehearsal says of reward functions, whichever framework calls them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rlstep_hooks.rehearse.asked.witnesses import FORMS
from rlstep_hooks.rehearse.messages import Rehearsal, said, say
from rlstep_hooks.rehearse.rewards import sum_up
from rlstep_hooks.systems.openrlhf.rehearse.rewards import watch as watch_openrlhf
from rlstep_hooks.systems.openrlhf.rehearse.rewards import watch_agent
from rlstep_hooks.systems.trl.rehearse.rewards import watch as watch_trl
from tests.cli.rewards import Sample, every_framework, in_trl, in_verl, verl_function


def samples(completions: list[str], answer: str) -> list[Sample]:
    return [Sample(each, answer) for each in completions]


def rewards_said(rehearsal: Rehearsal) -> list[tuple[str, str]]:
    sum_up()
    return [(each.level, each.text) for each in said(rehearsal) if each.topic == "reward"]


@every_framework
def test_rewards_that_differ_are_a_signal(rehearsal: Rehearsal, run: Any) -> None:
    run(lambda text, _: len(text), samples(["a", "bcd"], "2"))
    assert rewards_said(rehearsal) == [("fact", "reward: different rewards for 2 completions")]


@every_framework
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("answer", ["2", "1 and 1 more\n#### 2", "$2$"])
def test_a_function_that_wants_any_usual_form_tells_the_rows_own_answers(
    rehearsal: Rehearsal, run: Any, form: str, answer: str
) -> None:
    run(lambda text, _: float(text == form.format("2")), samples(["a", "bcd"], answer))
    ((level, text),) = rewards_said(rehearsal)
    words = "reward gave 0 for each of 2 completions of a random model; it does differ on the rows' own answers"
    assert (level, text) == ("fact", words)


@every_framework
def test_a_function_that_wants_the_rows_own_text_tells_it(rehearsal: Rehearsal, run: Any) -> None:
    run(lambda text, answer: float(text == answer), samples(["a", "bcd"], "1 and 1 more\n#### 2"))
    assert [level for level, _ in rewards_said(rehearsal)] == ["fact"]


@every_framework
def test_a_constant_reward_is_a_doubt(rehearsal: Rehearsal, run: Any) -> None:
    run(lambda text, answer: 1.0, samples(["a", "bcd"], "2"))
    words = "reward gave 1 for each of 2 completions of a random model, and for the rows' own answers too"
    assert rewards_said(rehearsal) == [("warning", words)]


@every_framework
def test_a_function_that_an_empty_completion_breaks_is_wrong(rehearsal: Rehearsal, run: Any) -> None:
    run(lambda text, _: ord(text[0]), samples(["a", "bcd"], "2"))
    words = "reward raises IndexError: string index out of range on an empty completion"
    assert rewards_said(rehearsal) == [("problem", words)]


@every_framework
def test_the_completion_that_a_function_raises_on_is_shown(rehearsal: Rehearsal, run: Any) -> None:
    with pytest.raises(ValueError, match="could not convert"):
        run(lambda text, _: float(text), samples(["3", "bcd"], "2"))
    shown = [{"role": "assistant", "content": "bcd"}] if run is in_trl else "bcd"
    words = f"reward raised ValueError: could not convert string to float: 'bcd' on the completion {str(shown)!r}"
    assert rewards_said(rehearsal)[-1] == ("problem", words)


@every_framework
@pytest.mark.parametrize(("level", "strict"), [("impossible", True), ("problem", False)])
def test_on_made_rows_only_what_no_completion_helps_is_put_down_to_them(
    rehearsal: Rehearsal, run: Any, level: str, strict: bool
) -> None:
    def judge(text: str, answer: str) -> float:
        if strict:
            raise KeyError("difficulty")
        return float(text)

    say("data", "512 rows made", level="replaced", columns=["question"])
    with pytest.raises((KeyError, ValueError)):
        run(judge, samples(["ab", "bcd"], "2"))
    ((said_level, text),) = rewards_said(rehearsal)
    assert said_level == level
    assert ("on every row, and the rows were made" in text) is strict


@every_framework
def test_a_package_that_a_function_lacks_is_no_fault_of_the_launch(rehearsal: Rehearsal, run: Any) -> None:
    def judge(text: str, answer: str) -> float:
        raise ModuleNotFoundError("No module named 'math_verify'")

    with pytest.raises(ImportError):
        run(judge, samples(["a"], "2"))
    words = "reward needs what is not here: ModuleNotFoundError: No module named 'math_verify'"
    assert rewards_said(rehearsal) == [("impossible", words)]


def test_what_a_framework_does_not_take_is_wrong(rehearsal: Rehearsal) -> None:
    def too_few(completions: list[str], **kwargs: Any) -> list[float]:
        return [float(len(each)) for each in completions[1:]]

    def no_list(completions: list[str], **kwargs: Any) -> float:
        return 1.0

    def pairs(completions: list[str], **kwargs: Any) -> list[Any]:
        return [(each, 1.0) for each in completions]

    def no_score(**kwargs: Any) -> dict[str, float]:
        return {"accuracy": 1.0}

    def words(**kwargs: Any) -> list[float]:
        return [1.0]

    def bare(queries: list[str], prompts: list[str], labels: list[str]) -> list[float]:
        return [1.0 for _ in queries]

    def two(queries: list[str], prompts: list[str], labels: list[str]) -> dict[str, list[float]]:
        return {"rewards": [1.0, 2.0]}

    for function in (too_few, no_list, pairs):
        watch_trl(function)(prompts=["", ""], completions=["a", "bcd"], completion_ids=[[1], [2]])
    for function in (no_score, words):
        verl_function(function)(solution_str="a", ground_truth="2")
    for function in (bare, two):
        watch_openrlhf(function)(["1 + 1 = a"], ["1 + 1 = "], ["2"])
    assert rewards_said(rehearsal) == [
        ("problem", "too_few returned 1 numbers for 2 completions"),
        ("problem", "no_list returned float, not a list of 2 numbers"),
        ("problem", "pairs returned a list of tuple, not of numbers"),
        ("problem", "no_score returned a dict without \"score\": ['accuracy']"),
        ("problem", "words returned list, not a number"),
        ("problem", 'bare returned list, not a dict with "rewards"'),
        ("problem", "two returned 2 rewards for 1 sample"),
    ]
    # verl and OpenRLHF may wait for the reward without end.
    stops = [each.text.partition(" ")[0] for each in said(rehearsal) if each.topic == "stop"]
    assert stops == ["no_score", "words", "bare", "two"]


def test_coroutines_and_agents_are_called_once_in_the_run_itself(rehearsal: Rehearsal) -> None:
    calls: list[str] = []

    async def judged(completions: list[str], **kwargs: Any) -> list[float | None]:
        calls.append("judged")
        return [1.0 for _ in completions]

    async def scored(solution_str: str, **kwargs: Any) -> float:
        calls.append("scored")
        return float(solution_str)

    class Executor:
        async def execute(self, reward: float) -> dict[str, float]:
            calls.append("agent")
            if not reward:
                raise RuntimeError("no reward")
            return {"reward": reward}

    module = SimpleNamespace(_load_agent_executor=lambda path: Executor())
    watch_agent(module)
    agent = module._load_agent_executor("agent.py")
    asyncio.run(watch_trl(judged)(completions=["a", "b"], answer=["2", "2"]))
    with pytest.raises(ValueError, match="could not convert"):
        asyncio.run(verl_function(scored)(solution_str="a"))
    with pytest.raises(RuntimeError):
        asyncio.run(agent.execute(reward=0.0))
    assert calls == ["judged", "scored", "agent"]
    words = "judged gave 1 for each of 2 completions of a random model, and for the rows' own answers too"
    assert rewards_said(rehearsal) == [
        ("problem", "scored raised ValueError: could not convert string to float: 'a' on the completion 'a'"),
        ("problem", "the agent raised RuntimeError: no reward"),
        ("warning", words),
    ]


def test_what_a_function_gave_in_several_processes_is_summed_up(rehearsal: Rehearsal) -> None:
    for value in (0.0, 1.0):  # one for each process, constant in each
        in_verl(lambda text, _, value=value: value, samples(["a", "b"], "2"))  # type: ignore[misc]
    assert rewards_said(rehearsal) == [("fact", "reward: different rewards for 4 completions")]
