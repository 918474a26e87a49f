"""The hook on OpenRLHF's agents, with executors and engines that are built like OpenRLHF's: what is noted, and that nothing breaks."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.observe.turn_records import TurnRecords
from rlstep_hooks.systems.openrlhf.observe import agents
from rlstep_hooks.systems.openrlhf.observe.environment import FOLDER, RUN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rlstep_hooks.record.events import TurnsJoined

TOKENIZER = SimpleNamespace(decode=lambda ids, **_: "".join(map(chr, ids)).lower())


class Executor:
    """Two turns and the word of an environment behind each, joined as OpenRLHF joins them."""

    async def execute(self, *, prompt: str, llm_engine: Any, hf_tokenizer: Any, images: Any = None) -> dict[str, Any]:
        tokens, ranges, drawn = [*map(ord, prompt)], [], [0.0] * len(prompt)
        for _ in range(2):
            output = (await llm_engine.generate(tokens, {"max_tokens": 5})).outputs[0]
            ranges.append((len(tokens), len(tokens) + len(output.token_ids)))
            tokens = [*tokens, *output.token_ids, ord("!")]
            drawn += [
                *(each[token].logprob for each, token in zip(output.logprobs, output.token_ids, strict=True)),
                0.0,
            ]
        return {"prompt": prompt, "observation_tokens": tokens, "action_ranges": ranges, "rollout_log_probs": drawn}


Executor.__module__ = "openrlhf.utils.agent"


class OwnLoop(Executor):
    """An executor of the user's, which asks the engine for something else first."""

    tokens = b"p:abc!abc!"

    async def execute(self, **asked: Any) -> dict[str, Any]:  # type: ignore[override]
        await asked["llm_engine"].generate([*b"what is asked here?"], {})
        answer = await super().execute(**asked)
        return {**answer, "observation_tokens": [*self.tokens]}


class Engine:
    """Answers each turn with three tokens."""

    name = "engine"

    async def generate(self, prompt: list[int], sampling: dict[str, Any]) -> Any:
        logprobs = [{token: SimpleNamespace(logprob=-float(place))} for place, token in enumerate(b"abc", 1)]
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=(*b"abc",), logprobs=logprobs)])


class SilentEngine(Engine):
    """Answers without what a log-prob is looked up by."""

    async def generate(self, prompt: list[int], sampling: dict[str, Any]) -> Any:
        result = await super().generate(prompt, sampling)
        result.outputs[0].logprobs = [{token: SimpleNamespace()} for token in b"abc"]
        return result


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], TurnsJoined]:
    """What the controller gets of the sessions since it was asked last."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setenv(RUN, "run")
    records = TurnRecords(tmp_path, "run")
    return lambda: records.take_all(0, 0)


def answer(executor: Executor, engine: Any, **more: Any) -> dict[str, Any]:
    """What a hooked executor answers."""
    module = SimpleNamespace(SingleTurnAgentExecutor=type(executor))
    patches = Patches()
    agents.place_single_turn_hooks(patches, module)
    try:
        return asyncio.run(executor.execute(prompt="p:", llm_engine=engine, hf_tokenizer=TOKENIZER, **more))
    finally:
        assert patches.restore() == []


def test_an_answer_is_compared_with_its_turns(told: Callable[[], TurnsJoined]) -> None:
    unobserved = asyncio.run(Executor().execute(prompt="p:", llm_engine=Engine(), hf_tokenizer=TOKENIZER))
    assert answer(Executor(), Engine()) == unobserved
    found = told()
    assert (found.rows, found.turns, found.sampled, found.written, found.log_probs_compared) == (1, 2, 6, 2, 1)
    assert (found.tokens_moved, found.masks_wrong, found.log_probs_moved, found.left_out) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("change", "like"),
    [
        (
            lambda got: got | {"action_ranges": [(2, 9)]},
            "tokens that a tool, an environment or the chat template wrote are trained",
        ),
        (lambda got: got | {"action_ranges": [(3, 6), (7, 10)]}, "its mask stands one token too late"),
        (lambda got: got | {"observation_tokens": [*b"p:abx!abc!"]}, "turn 1 has other tokens"),
    ],
)
def test_an_answer_with_a_mistake_is_named(
    told: Callable[[], TurnsJoined], monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any], like: str
) -> None:
    execute = Executor.execute

    async def wrong(self: Executor, **asked: Any) -> Any:
        return change(await execute(self, **asked))

    monkeypatch.setattr(Executor, "execute", wrong)
    answer(Executor(), Engine())
    found = told()
    assert like in found.tokens_like + found.masks_like


def test_what_is_not_compared_says_why(told: Callable[[], TurnsJoined]) -> None:
    answer(Executor(), Engine(), images=["an image"])
    assert told().left_out_why == "the prompt has images, which count tokens otherwise"


@pytest.mark.parametrize(
    ("tokens", "rows", "like"),
    [
        (b"p:abc!abc!", 1, ""),
        (b"p:aBc!abc!", 1, "turn 1 was decoded and encoded again"),
        (b"P:abc!abc!", 0, ""),
    ],
)
def test_a_loop_of_ones_own_is_compared_by_its_prompt(
    told: Callable[[], TurnsJoined], monkeypatch: pytest.MonkeyPatch, tokens: bytes, rows: int, like: str
) -> None:
    monkeypatch.setattr(OwnLoop, "tokens", tokens)
    answer(OwnLoop(), Engine())
    found = told()
    assert (found.rows, found.tokens_like, found.masks_wrong) == (rows, like, 0)
    assert found.left_out_why == ("" if rows else "an answer begins with a prompt that no turn was asked for")


def test_a_hook_that_fails_costs_an_observation_and_nothing_else(
    told: Callable[[], TurnsJoined], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoLogProbs(Executor):
        async def execute(self, **asked: Any) -> dict[str, Any]:  # type: ignore[override]
            await asked["llm_engine"].generate([*b"p:"], {})
            return {"observation_tokens": [*b"p:abc"]}

    NoLogProbs.__module__ = "openrlhf.utils.agent"
    assert answer(NoLogProbs(), SilentEngine()) == {"observation_tokens": [*b"p:abc"]}
    assert told().left_out_why.startswith("a hook failed: AttributeError")
    monkeypatch.setenv(FOLDER, str(tmp_path / "on another machine"))
    assert answer(Executor(), Engine())["prompt"] == "p:"


def test_an_engine_is_still_what_it_was() -> None:
    engine = agents._Asked(Engine(), agents._Open())
    assert engine.name == "engine"
    assert isinstance(engine, Engine)
