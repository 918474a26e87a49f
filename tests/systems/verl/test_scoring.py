"""What is seen where verl scores samples, without a launch: stand-ins for its reward manager, whose interface is that of 0.9.1."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rlstep_hooks.systems.verl.observe import reward_calls
from rlstep_hooks.systems.verl.observe.encoded_prompts import PROMPTS, EncodedPrompts

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.observe.reward_records import Scored


class Data:
    """Samples of one session; what is scored is the last."""

    def __init__(self, text: str, truth: str) -> None:
        tokens = torch.tensor([ord(one) for one in text])
        self.item = SimpleNamespace(
            batch={"responses": tokens, "prompts": torch.tensor([1, 2])},
            non_tensor_batch={
                "prompt_len": 2,
                "response_len": len(tokens),
                "data_source": "d",
                "reward_model": {"ground_truth": truth},
                "extra_info": {"index": 5},
            },
        )

    def __getitem__(self, place: int) -> Any:
        return self.item


class NaiveRewardManager:
    """As verl's: decodes, asks the function, and hands its answer on."""

    tokenizer = SimpleNamespace(decode=lambda ids, skip_special_tokens: "".join(chr(int(one)) for one in ids))

    def __init__(self, function: Callable[..., Any], mistake: str = "") -> None:
        self.compute_score, self._mistake = function, mistake

    async def run_single(self, data: Data) -> dict[str, Any]:
        item = data[-1]
        text = self.tokenizer.decode(item.batch["responses"], skip_special_tokens=True)
        truth = item.non_tensor_batch["reward_model"]["ground_truth"]
        text = text[:-1] if self._mistake == "text" else text
        truth = "9" if self._mistake == "truth" else truth
        source = "e" if self._mistake == "source" else item.non_tensor_batch["data_source"]
        extra = item.non_tensor_batch["extra_info"]
        extra["num_turns"] = 2
        extra = extra | {"index": -1} if self._mistake == "extra" else extra
        result = self.compute_score(data_source=source, solution_str=text, ground_truth=truth, extra_info=extra)
        result = await result if asyncio.iscoroutine(result) else result
        score = result["score"] if isinstance(result, dict) else result
        return {"reward_score": score + 1 if self._mistake == "score" else score, "reward_extra_info": {}}


NaiveRewardManager.__module__ = "verl.experimental.stand_in"


def plain(solution_str: str, ground_truth: str, **_more: Any) -> float:
    return float(ground_truth in solution_str)


async def waiting(solution_str: str, ground_truth: str, **_more: Any) -> dict[str, float]:
    return {"score": float(ground_truth in solution_str), "other": 3.0}


def lines(monkeypatch: pytest.MonkeyPatch, manager: Any, *samples: Data) -> tuple[list[Scored], list[Any]]:
    written: list[Scored] = []
    monkeypatch.setattr(reward_calls, "write", lambda folder, run, scored: written.append(scored))
    monkeypatch.setattr(reward_calls, "run_of_ray", lambda: "r")
    monkeypatch.setattr(reward_calls, "folder", lambda: None)
    reward_calls.ScoringWatch(manager).place()
    return written, [asyncio.run(manager.run_single(sample)) for sample in samples]


def writing(solution_str: str, ground_truth: str, extra_info: Any, **_more: Any) -> float:
    extra_info["index"] = extra_info["answers"] = extra_info.get("answers", 0) + 1
    return float(ground_truth in solution_str)


@pytest.mark.parametrize("function", [plain, waiting, writing])
def test_a_manager_that_asks_rightly_is_silent(monkeypatch: pytest.MonkeyPatch, function: Any) -> None:
    written, results = lines(monkeypatch, NaiveRewardManager(function), Data("it is 7", "7"), Data("8?", "7"))
    assert [line.like for line in written] == ["", ""]
    assert [line.score for line in written] == [1.0, 0.0]
    assert [result["reward_score"] for result in results] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("mistake", "like"),
    [
        ("text", "asked about another text with its ground truth"),
        ("truth", "asked about its text with another ground truth"),
        ("source", "asked about its text with another data_source or extra_info"),
        ("extra", "asked about its text with another data_source or extra_info"),
        ("score", "given another score than the function answered"),
    ],
)
def test_a_manager_that_asks_otherwise_is_named(monkeypatch: pytest.MonkeyPatch, mistake: str, like: str) -> None:
    written, _ = lines(monkeypatch, NaiveRewardManager(plain, mistake), Data("it is 7", "7"))
    assert [line.like for line in written] == [like]


def test_what_a_function_raises_passes_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(**_all: Any) -> float:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        lines(monkeypatch, NaiveRewardManager(raises), Data("a", "7"))


def test_a_managers_own_way_with_texts_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(NaiveRewardManager):
        """Decodes in its own way."""

    written, _ = lines(monkeypatch, Mine(plain, "text"), Data("it is 7", "7"))
    assert [line.like for line in written] == [""]


def worker() -> Any:
    class Tokenizer:
        def apply_chat_template(self, messages: Any, **given: Any) -> list[int]:
            assert given["add_generation_prompt"]
            return [ord(one) for one in messages[0]["content"]]

    return SimpleNamespace(
        processor=None,
        tokenizer=Tokenizer(),
        config=SimpleNamespace(data={}),
        rollout_config=SimpleNamespace(prompt_length=3),
    )


def test_some_prompts_of_each_step_are_encoded_again() -> None:
    encoded, of = EncodedPrompts(), worker()
    messages = [{"role": "user", "content": "abcd"}]
    chosen = [encoded.begin(of, "single_turn_agent", step, messages) for step in (1, 1, 1, 1, 1, 2)]
    assert [found is not None for found in chosen] == [True] * PROMPTS + [False, True]
    assert chosen[0] is not messages
    assert encoded.tokens(of, messages) == [ord(one) for one in "abcd"], "the whole prompt, however long"
    assert encoded.begin(of, "tool_agent", 3, messages) is None


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_an_answer_that_is_not_finite_is_the_answer(monkeypatch: pytest.MonkeyPatch, score: float) -> None:
    written, _ = lines(monkeypatch, NaiveRewardManager(lambda **_: score), Data("42", "4"))
    assert [(line.score, line.like) for line in written] == [(None, "")]


class Whole(Data):
    """The same as verl's own manager takes it."""

    def __init__(self, text: str, truth: str) -> None:
        super().__init__(text, truth)
        self.item.batch["attention_mask"] = torch.ones(2 + len(text), dtype=torch.long)

    def __getitem__(self, place: Any) -> Any:
        return self if isinstance(place, slice) else self.item


def penalised(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None] = lambda manager: None) -> list[str]:
    """What is found of completions that verl's own manager penalises from the fifth of eight tokens on."""
    dapo = pytest.importorskip("verl.experimental.reward_loop.reward_manager.dapo")
    omegaconf = pytest.importorskip("omegaconf")
    buffer = {"enable": True, "len": 4, "penalty_factor": 0.7, "log": False}
    config = omegaconf.OmegaConf.create(
        {"reward": {"reward_kwargs": {"overlong_buffer_cfg": buffer, "max_resp_len": 8}}}
    )
    monkeypatch.setattr(dapo.DAPORewardManager, "init_class", classmethod(lambda *_: None))

    class Now:
        """Runs at once what the manager gives to another thread."""

        async def run_in_executor(self, _: Any, call: Callable[[], Any]) -> Any:
            return call()

    manager = dapo.DAPORewardManager(config, NaiveRewardManager.tokenizer, plain)
    manager.loop = Now()
    plainly = manager.run_single

    async def run_single(data: Any) -> Any:
        change(manager)
        return await plainly(data)

    manager.run_single = run_single
    written, _ = lines(monkeypatch, manager, Whole("7", "7"), Whole("it is 7", "7"), Whole("it is 78", "9"))
    return [line.like for line in written]


def test_a_penalty_for_length_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert penalised(monkeypatch) == ["", "", ""]

    def without(manager: Any) -> None:
        manager.overlong_buffer_cfg = None

    like = "given the function's answer without the penalty for its length"
    assert penalised(monkeypatch, without) == ["", like, like]

    def longer(manager: Any) -> None:
        manager.max_resp_len = 12

    assert penalised(monkeypatch, longer) == ["", like, like]

    def shorter(manager: Any) -> None:
        manager.max_resp_len = 6

    like = "given another score than the function's answer less the penalty for its length"
    assert penalised(monkeypatch, shorter) == ["", like, like]


def test_what_cannot_be_read_reaches_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    unread = Data("it is 7", "7")
    del unread.item.non_tensor_batch["prompt_len"]
    written, results = lines(monkeypatch, NaiveRewardManager(plain), unread, Data("8?", "7"))
    assert [result["reward_score"] for result in results] == [1.0, 0.0]
    assert [line.score for line in written] == [0.0], "the sample that was not read has no line"


def test_questions_are_not_compared_once_an_answer_was_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [object(), 1.0]
    manager = NaiveRewardManager(lambda **_: answers.pop(0), "text")
    written, _ = lines(monkeypatch, manager, Data("it is 7", "7"), Data("it is 8", "7"))
    assert [(line.score, line.like) for line in written] == [(1.0, "")]
