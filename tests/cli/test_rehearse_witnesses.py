"""Reward functions are asked about texts that any model may give: faults are named with their text, legal rewards are not accused."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.rehearse.asked import review
from rlstep_hooks.rehearse.messages import Rehearsal, said
from rlstep_hooks.rehearse.rewards import completions_may_have, sum_up
from rlstep_hooks.systems.trl.rehearse.rewards import watch as watch_trl
from tests.cli.rewards import Sample, every_call, every_framework, in_openrlhf, in_trl, in_trl_batch, in_verl

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLES = [
    Sample("it is so", "12", "What is 5 + 7?"),
    Sample("so", "12", "What is 5 + 7?"),
    Sample("so it is 3", "30", "What is 14 + 16?"),
    Sample("it", "30", "What is 14 + 16?"),
]


def doubts(rehearsal: Rehearsal) -> list[tuple[str, str]]:
    """What was found at other texts: the level and the words."""
    return [(each.level, each.text) for each in said(rehearsal) if each.topic == "reward" and each.values.get("asked")]


def told(rehearsal: Rehearsal) -> str:
    """What the last review says of itself."""
    return [each.text for each in said(rehearsal) if each.topic == "asked"][-1]


def boxed(text: str) -> str | None:
    found = re.findall(r"\\boxed\{([^{}]*)\}", text)
    return found[-1] if found else None


def after_marks(text: str) -> str | None:
    found = re.search(r"#### (-?[0-9]+)", text)
    return found.group(1) if found else None


HEALTHY: dict[str, Callable[[str, str], float]] = {
    "the last box": lambda text, answer: float(boxed(text) == answer),
    "GSM8K's marks, a part for the form": lambda text, answer: (
        0.0 if after_marks(text) is None else 1.0 if after_marks(text) == answer else 0.1
    ),
    "a penalty for no answer": lambda text, answer: -1.0 if boxed(text) is None else float(boxed(text) == answer),
    "a wrong answer is worse than none": lambda text, answer: (
        0.0 if boxed(text) is None else 1.0 if boxed(text) == answer else -1.0
    ),
    "a length": lambda text, _: -len(text) / 100,
    "a length, and the row's difficulty": lambda text, answer: len(text) / 10 - len(answer),
    "a form": lambda text, _: float(
        re.fullmatch(r"<think>.*</think>\n?<answer>.*</answer>", text, re.DOTALL) is not None
    ),
    "a form that no usual text has": lambda text, _: float(text.startswith("{") and text.endswith("}}")),
    "the right answer, and a bonus for length above it": lambda text, answer: (
        float(boxed(text) == answer) + min(len(text), 2000) / 500
    ),
    "an overlap of words": lambda text, answer: (
        len(set(text.split()) & set(answer.split())) / max(1, len(set(text.split()) | set(answer.split())))
    ),
    "drawn at random": lambda text, answer: random.random(),
    "the right answer, with noise": lambda text, answer: float(boxed(text) == answer) + random.gauss(0, 0.1),
    "a penalty above a length": lambda text, _: -1.0 if len(text) > 3000 else 0.0,
}


@every_call
@pytest.mark.parametrize("name", HEALTHY)
def test_a_legal_reward_is_not_accused(rehearsal: Rehearsal, run: Any, name: str) -> None:
    run(HEALTHY[name], SAMPLES)
    assert doubts(rehearsal) == []
    assert "texts" in told(rehearsal)


@every_call
def test_right_is_told_from_wrong_in_the_form_that_the_function_wants(rehearsal: Rehearsal, run: Any) -> None:
    run(HEALTHY["the last box"], SAMPLES)
    words = told(rehearsal)
    assert "it tells the rows' own answers from others' (" in words
    assert "boxed{...}': 1 against 0)" in words
    assert "between two of another row" not in words


@every_call
def test_a_substring_is_legal_and_said(rehearsal: Rehearsal, run: Any) -> None:
    run(lambda text, answer: float(answer in text), SAMPLES)
    assert doubts(rehearsal) == []
    assert told(rehearsal).endswith("also between two of another row; also within other words, in no form")


@every_call
def test_an_answer_that_stands_in_the_prompt_is_found_by_the_prompt(rehearsal: Rehearsal, run: Any) -> None:
    choices = [Sample(each.completion, each.answer, f"{each.prompt} 12 or 30 or 7?") for each in SAMPLES]
    run(lambda text, answer: float(answer in text), choices)
    words = "reward rewards the prompt itself with 1, as much as the row's own answer (1)"
    assert doubts(rehearsal) == [("warning", words)]


@every_call
def test_a_text_without_an_answer_that_counts_as_right_is_named(rehearsal: Rehearsal, run: Any) -> None:
    run(lambda text, answer: 1.0 if boxed(text) in (None, answer) else 0.0, SAMPLES)
    ((level, words),) = [each for each in doubts(rehearsal) if "prompt" not in each[1]]
    assert level == "warning"
    assert words.startswith("reward rewards an empty completion and ")
    assert "as much as the row's own answer (1)" in words


BREAKS: dict[str, tuple[Callable[[str, str], float], str, str]] = {
    "the first sign": (
        lambda text, _: float(ord(text.strip()[0])),
        "problem",
        "raises IndexError: string index out of range on an empty completion and one other text, such as white space alone",
    ),
    "an empty answer": (
        lambda text, answer: (
            float(text.split("<answer>")[1].split("</answer>")[0][0] == answer) if "<answer>" in text else 0.0
        ),
        "problem",
        "raises IndexError: string index out of range on the form '<answer></answer>' without an answer and one other text, "
        "such as the form '<answer>' without an answer",
    ),
    "Python's longest number": (
        lambda text, _: float(int(text) % 2) if text.isdigit() else 0.0,
        "warning",
        "raises ValueError: Exceeds the limit (4300 digits) for integer string conversion: value has 5000 digits; use "
        "sys.set_int_max_str_digits() to increase the limit on a number of 5000 digits",
    ),
    "another encoding": (
        lambda text, _: float(len(text.encode("latin-1"))),
        "warning",
        "on replacement characters, signs that are not shown and digits of another script",
    ),
    "what Python cannot nest": (
        lambda text, _: float(len(repr(compile(text, "", "eval")))) if text.startswith("(") else 0.0,
        "warning",
        "on 2000 opening brackets",
    ),
}


@every_framework
def test_a_small_bonus_for_something_else_hides_nothing(rehearsal: Rehearsal, run: Any) -> None:
    run(lambda text, answer: float(boxed(text) in (None, answer)) + len(text) % 7 / 100, SAMPLES)
    ((level, words), *_) = [each for each in doubts(rehearsal) if "prompt" not in each[1]]
    assert (level, words[:40]) == ("warning", "reward rewards an empty completion and 1")


@every_call
@pytest.mark.parametrize("name", BREAKS)
def test_a_text_that_a_function_raises_on_is_named(rehearsal: Rehearsal, run: Any, name: str) -> None:
    completions_may_have(2000)
    judge, level, words = BREAKS[name]
    run(judge, SAMPLES)
    ((found, text),) = doubts(rehearsal)
    assert found == level
    assert text.endswith(words)


@every_call
def test_a_function_that_hangs_is_ended_and_named(
    rehearsal: Rehearsal, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(review, "EACH", 1.0)

    def judge(text: str, answer: str) -> float:
        # Backtracks without end, and Python's lock is held meanwhile.
        return float(re.fullmatch(r"(\(+)+x", text[:40]) is not None) + float(boxed(text) == answer)

    began = time.monotonic()
    run(judge, SAMPLES)
    assert time.monotonic() - began < 30
    ((level, words),) = doubts(rehearsal)
    assert level == "warning"
    assert "reward gave no answer within 1 s on 1024 opening brackets" in words
    assert "it tells the rows' own answers from others'" in told(rehearsal)


@every_call
def test_a_function_that_ends_its_process_is_named(rehearsal: Rehearsal, run: Any) -> None:
    def judge(text: str, answer: str) -> float:
        if text == "":
            os.kill(os.getpid(), signal.SIGSEGV)
        return float(boxed(text) == answer)

    run(judge, SAMPLES)
    words = "reward ends its process by the signal SIGSEGV on an empty completion"
    assert doubts(rehearsal) == [("problem", words)]


@every_call
def test_a_function_that_gives_no_number_is_named(rehearsal: Rehearsal, run: Any) -> None:
    run(lambda text, answer: float("inf") if "boxed" in text else 0.0, SAMPLES)
    ((level, words),) = doubts(rehearsal)
    assert (level, words[:31]) == ("warning", "reward gives inf on the form '\\")


def test_a_function_of_first_rows_answer_does_not_follow_its_batch(rehearsal: Rehearsal) -> None:
    def reward(completions: list[Any], answer: list[str], **kwargs: Any) -> list[float]:
        return [float(answer[0] in each[0]["content"]) for each in completions]

    in_trl_batch(reward, [Sample("so 12", "12"), Sample("12", "30")])
    ((level, words),) = doubts(rehearsal)
    assert level == "warning"
    assert "reward does not follow its batch: completion 1 of 2" in words
    assert "gets 1, and 0 when the batch comes in the reverse order" in words


def test_a_reward_that_sorts_is_found_and_one_of_groups_is_not(rehearsal: Rehearsal) -> None:
    def sorted_up(completions: list[Any], **kwargs: Any) -> list[float]:
        return sorted(float(len(each[0]["content"])) for each in completions)

    def of_the_group(completions: list[Any], **kwargs: Any) -> list[float]:
        lengths = [len(each[0]["content"]) for each in completions]
        return [each - sum(lengths) / len(lengths) for each in lengths]

    def of_pairs(completions: list[Any], **kwargs: Any) -> list[float]:
        lengths = [len(each[0]["content"]) for each in completions]
        if len(lengths) % 2:
            raise ValueError("no pairs")
        return [float(each) for each in lengths]

    def of_places(completions: list[Any], **kwargs: Any) -> list[float]:
        draw = random.Random(7)
        return [draw.random() for _ in completions]

    for reward in (of_the_group, of_pairs):
        in_trl_batch(reward, SAMPLES)
        assert doubts(rehearsal) == []
    assert "on a batch of one completion it raises ValueError: no pairs, so values were not compared" in told(rehearsal)
    for number, wrong in enumerate((sorted_up, of_places), start=1):
        in_trl_batch(wrong, SAMPLES)
        assert len(doubts(rehearsal)) == number
        assert f"{wrong.__name__} does not follow its batch" in doubts(rehearsal)[-1][1]


def test_a_function_that_wants_whole_groups_is_asked_in_whole_groups(rehearsal: Rehearsal) -> None:
    def reward(prompts: list[Any], completions: list[Any], answer: list[str], **kwargs: Any) -> list[float]:
        texts = [each[0]["content"] for each in prompts]
        if any(texts.count(each) != 2 for each in texts):
            raise ValueError("half a group")
        return [float(boxed(each[0]["content"]) == right) for each, right in zip(completions, answer, strict=True)]

    in_trl_batch(reward, SAMPLES)
    assert doubts(rehearsal) == []
    assert "on a batch of one completion it raises ValueError: half a group" in told(rehearsal)
    values = [pair for each in said(rehearsal) if each.topic == "asked" for pair in each.values["rewards"]]
    assert {value for *_, value in values} == {0.0, 1.0}


@every_framework
def test_a_function_that_cannot_be_called_elsewhere_is_not_accused(rehearsal: Rehearsal, run: Any) -> None:
    here = os.getpid()

    def judge(text: str, answer: str) -> float:
        if os.getpid() != here:
            raise RuntimeError("CUDA error: initialization error")
        return float(len(text))

    run(judge, SAMPLES)
    assert doubts(rehearsal) == []
    assert "called again in a process of its own, it raised RuntimeError: CUDA error" in told(rehearsal)


def test_a_pool_that_did_not_come_along_is_no_answer(rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(review, "FIRST", 1.0)
    here = os.getpid()

    def judge(text: str, answer: str) -> float:
        if os.getpid() != here:
            time.sleep(2)  # the time limit of the function's own
            return 0.0
        return float(boxed(text) == answer)

    in_verl(judge, SAMPLES)
    assert doubts(rehearsal) == []
    assert told(rehearsal).endswith("called again in a process of its own, it gave no answer within 1 s")


@every_framework
def test_what_cannot_be_asked_elsewhere_is_asked_about_nothing_and_the_answers_here(
    rehearsal: Rehearsal, run: Any
) -> None:
    here = os.getpid()

    def judge(text: str, answer: str) -> float:
        if os.getpid() != here:
            raise RuntimeError("no connection")
        return float(text[0] == "$" and answer in text)

    run(judge, SAMPLES)
    sum_up()
    words = [(each.level, each.text) for each in said(rehearsal) if each.topic == "reward"]
    assert words == [("problem", "reward raises IndexError: string index out of range on an empty completion")]
    values = [value for each in said(rehearsal) if each.topic == "asked" for _, _, value in each.values["rewards"]]
    assert set(values) == {0.0, 1.0}


@every_framework
def test_asking_leaves_the_function_as_it_was(rehearsal: Rehearsal, run: Any) -> None:
    calls: list[str] = []
    random.seed(3)

    def judge(text: str, answer: str) -> float:
        calls.append(text)
        return random.random()

    run(judge, SAMPLES)
    random.seed(3)
    expected = [random.random() for _ in SAMPLES]
    given = [value for each in said(rehearsal) if each.topic == "rewarded" for value in each.values["rewards"]]
    assert given == expected
    assert calls == [each.completion for each in SAMPLES]
    assert "gives the same completions other rewards when asked again" in told(rehearsal)


def test_tokens_of_a_text_are_those_that_a_function_of_tokens_gets(rehearsal: Rehearsal) -> None:
    def too_long(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        return [-1.0 if len(each) > 900 else 0.0 for each in completion_ids]

    completions_may_have(1000)
    watched = watch_trl(too_long, lambda text: [1] * len(text.split()))
    watched(prompts=["a", "b"], completions=["so", "so it"], completion_ids=[[1], [1, 1]])
    values = [pair for each in said(rehearsal) if each.topic == "asked" for pair in each.values["rewards"]]
    assert {told for told, _, value in values if value == -1} == {"a text of 1000 words without an answer"}


def test_the_prompt_is_the_last_message(rehearsal: Rehearsal) -> None:
    seen: list[str] = []

    def reward(completions: list[Any], **kwargs: Any) -> list[float]:
        seen.extend(each[0]["content"] for each in completions)
        return [float("one more?" in each[0]["content"]) for each in completions]

    in_trl_batch(reward, [Sample("so", "2", "one more?"), Sample("so", "3", "one more?")])
    values = [pair for each in said(rehearsal) if each.topic == "asked" for pair in each.values["rewards"]]
    assert {told for told, _, value in values if value == 1} == {"the prompt itself"}


def test_rows_of_one_answer_are_asked_about_without_a_comparison(rehearsal: Rehearsal) -> None:
    in_verl(lambda text, answer: float(boxed(text) == answer), [Sample("so", "2")] * 3)
    assert "only one answer was seen" in told(rehearsal)
    assert len([each for each in said(rehearsal) if each.topic == "asked"]) == 1
    in_verl(lambda text, answer: float(boxed(text) == answer), [Sample("so", "2"), Sample("so", "3")])
    assert "it tells the rows' own answers from others'" in told(rehearsal)


def test_nested_answers_are_found(rehearsal: Rehearsal) -> None:
    def judge(text: str, truth: Any) -> float:
        return float(text in truth["target"])

    samples: Any = [Sample("so", {"target": ["Rome", "Roma"]}), Sample("so", {"target": ["Paris"]})]  # type: ignore[arg-type]
    for run in (in_trl, in_verl, in_openrlhf):
        run(judge, samples)
        assert "it tells the rows' own answers from others' ('...': 1 against 0)" in told(rehearsal)
    assert doubts(rehearsal) == []


def test_what_a_function_gives_elsewhere_decides_whether_it_is_constant(rehearsal: Rehearsal) -> None:
    def penalty(completions: list[Any], **kwargs: Any) -> list[float]:
        return [-1.0 if len(each[0]["content"]) > 3000 else 0.0 for each in completions]

    def flat(completions: list[Any], **kwargs: Any) -> list[float]:
        return [1.0 for _ in completions]

    for reward in (penalty, flat):
        in_trl_batch(reward, SAMPLES)
    sum_up()
    beyond = "it does differ on a text of 1024 words without an answer"
    assert [(each.level, each.text) for each in said(rehearsal) if each.topic == "reward"] == [
        ("fact", f"penalty gave 0 for each of 4 completions of a random model; {beyond}"),
        ("warning", "flat gave 1 for each of 4 completions of a random model, and for the rows' own answers too"),
    ]


OPENING, CLOSING = "<SOLUTION>", "</SOLUTION>"
CLOSED = re.compile(rf"</plan>.*?{OPENING}(.+?){CLOSING}$", re.DOTALL)
PATTERN = re.compile(rf"^<plan>.+?</plan>.*?{OPENING}(.+?){CLOSING}", re.DOTALL)


def between(text: str) -> str | None:
    """What stands between the tags that this file names."""
    return text.split(OPENING)[1].split(CLOSING)[0] if OPENING in text and CLOSING in text else None


class Matching:
    """A reward that is an object, with its tags in a pattern of the file."""

    def __call__(self, completions: list[Any], answer: list[str], **kwargs: Any) -> list[float]:
        """1 for the right answer after a plan."""
        found = [PATTERN.match(each[0]["content"]) for each in completions]
        return [float(each is not None and each.group(1) == right) for each, right in zip(found, answer, strict=True)]


def test_the_tags_that_a_function_names_are_a_form_of_its_answers(rehearsal: Rehearsal) -> None:
    in_verl(lambda text, answer: float(between(text) == answer), SAMPLES)
    assert "('<SOLUTION>...</SOLUTION>': 1 against 0)" in told(rehearsal)
    in_openrlhf(lambda text, answer: float(between(text) == answer), SAMPLES)
    assert "('<SOLUTION>...</SOLUTION>': 1 against 0)" in told(rehearsal)
    in_openrlhf(
        lambda text, answer: float((found := CLOSED.search(text)) is not None and found.group(1) == answer), SAMPLES
    )
    assert "('so</plan><SOLUTION>...</SOLUTION>': 1 against 0)" in told(rehearsal)
    in_trl_batch(Matching(), SAMPLES)
    assert "('<plan>so</plan><SOLUTION>...</SOLUTION>': 1 against 0)" in told(rehearsal)


def test_an_expression_of_a_puzzles_own_numbers_that_no_machine_evaluates_is_named(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(review, "EACH", 1.0)

    def judge(text: str, truth: Any) -> float:
        found = re.search("<answer>([0-9*+/() -]+)</answer>", text)
        numbers = sorted(map(int, re.findall("[0-9]+", found.group(1)))) if found else []
        return float(
            found is not None and numbers == sorted(truth["numbers"]) and eval(found.group(1)) == truth["target"]
        )

    samples: Any = [
        Sample("so", {"target": 98, "numbers": [44, 19, 35]}),  # type: ignore[arg-type]
        Sample("so", {"target": 62, "numbers": [7, 50, 5]}),  # type: ignore[arg-type]
    ]
    in_verl(judge, samples)
    words = "gave no answer within 1 s on the number '<answer>19**35**44</answer>', where the run's own call took"
    assert words in doubts(rehearsal)[0][1]
    assert len(doubts(rehearsal)) == 1
