"""The hook on OpenRLHF's agents, with executors and engines that are built like OpenRLHF's: what is noted, and that nothing breaks."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.observe.turn_records import TurnRecords
from rlstep_hooks.systems.openrlhf.observe import agents, graded_answers
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


class OneTurn:
    """One turn and a reward function, as OpenRLHF puts them together."""

    asks: Callable[..., Any] = staticmethod(lambda query, prompt, label: ([query], [prompt], [label]))
    gives: Callable[[float], float] = staticmethod(lambda reward: reward)
    encodes: Callable[[str], str] = staticmethod(lambda prompt: prompt)
    truncated = True

    def __init__(self) -> None:
        self.reward_func = lambda queries, prompts, labels: {"rewards": [len(queries[0]) + len(labels[0])]}

    async def execute(self, *, prompt: str, label: str, llm_engine: Any, hf_tokenizer: Any, **_: Any) -> dict[str, Any]:
        tokens = [*map(ord, self.encodes(prompt))]
        output = (await llm_engine.generate(tokens, {})).outputs[0]
        whole = [*tokens, *output.token_ids]
        asked = self.asks(hf_tokenizer.decode(whole), prompt, label)
        given = await asyncio.to_thread(self.reward_func, *asked)
        return {
            "prompt": prompt,
            "label": label,
            "observation_tokens": whole,
            "action_ranges": [(len(tokens), len(whole))],
            "rollout_log_probs": None,
            "reward": self.gives(given["rewards"][0]),
            "truncated": self.truncated,
        }


OneTurn.__module__ = "openrlhf.utils.agent"


class CuttingEngine(Engine):
    """Answers with as many tokens as it may, without log-probs."""

    async def generate(self, prompt: list[int], sampling: dict[str, Any]) -> Any:
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=(*b"abc",), logprobs=None, finish_reason="length")])


class Tokenizer:
    """One token for each character."""

    def __call__(self, *, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [*map(ord, text)]}

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(map(chr, ids))


MISTAKES: list[tuple[dict[str, Any], str, str]] = [
    ({}, "", ""),
    ({"asks": lambda query, prompt, label: ([query[:-1]], [prompt], [label])}, graded_answers.OTHER_TEXT, ""),
    ({"asks": lambda query, prompt, label: ([query], ["q:"], [label])}, graded_answers.OTHER_PROMPT, ""),
    ({"asks": lambda query, prompt, label: ([query], [prompt], ["6"])}, graded_answers.OTHER_LABEL, ""),
    ({"gives": lambda reward: reward / 2}, graded_answers.OTHER_REWARD, ""),
    ({"truncated": False}, graded_answers.OTHER_END, ""),
    ({"encodes": lambda prompt: prompt[:-1]}, "", "the prompt has other tokens than the tokenizer gives for its text"),
]


@pytest.mark.parametrize(("changed", "rewards_like", "tokens_like"), MISTAKES)
def test_a_reward_is_that_of_its_answer(
    told: Callable[[], TurnsJoined],
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, Any],
    rewards_like: str,
    tokens_like: str,
) -> None:
    for name, value in changed.items():
        monkeypatch.setattr(OneTurn, name, staticmethod(value) if callable(value) else value)
    patches = Patches()
    agents.place_single_turn_hooks(patches, SimpleNamespace(SingleTurnAgentExecutor=OneTurn))
    sampling = SimpleNamespace(max_tokens=3)
    asked = {"prompt": "p:", "label": "5", "sampling_params": sampling, "max_length": 8}
    try:
        asyncio.run(OneTurn().execute(**asked, llm_engine=CuttingEngine(), hf_tokenizer=Tokenizer()))
    finally:
        assert patches.restore() == []
    found = told()
    assert (found.left_out_why, found.rewards_compared, found.rewards_unseen) == ("", 1, 0)
    assert (found.rewards_moved, found.rewards_like) == (bool(rewards_like), rewards_like)
    assert (found.tokens_moved, found.tokens_like) == (bool(tokens_like), tokens_like)


class SeveralTurns:
    """An agent's steps added up, as OpenRLHF does it."""

    gives: Callable[[float], float] = staticmethod(lambda reward: reward)

    def __init__(self) -> None:
        self.agent_instance_cls = Stepping

    async def execute(self, *, prompt: str, label: str, llm_engine: Any, **_: Any) -> dict[str, Any]:
        agent = self.agent_instance_cls()
        text = (await agent.reset({"observation": prompt, "label": label}))["observation"]
        tokens, ranges, reward = [*map(ord, text)], [], 0.0
        for _ in range(2):
            output = (await llm_engine.generate(tokens, {})).outputs[0]
            ranges.append((len(tokens), len(tokens) + len(output.token_ids)))
            tokens = [*tokens, *output.token_ids, ord("!")]
            reward += (await agent.step({"label": label}))["rewards"]
        given = {"prompt": prompt, "label": label, "reward": self.gives(reward), "truncated": True}
        return given | {"observation_tokens": tokens, "action_ranges": ranges, "rollout_log_probs": None}


SeveralTurns.__module__ = "openrlhf.utils.agent"


class Stepping:
    """An agent that says more than the prompt, and gives 0.5 for each step."""

    async def reset(self, states: dict[str, Any]) -> dict[str, Any]:
        return {"observation": "s:" + states["observation"]}

    async def step(self, states: dict[str, Any]) -> dict[str, Any]:
        return {"rewards": 0.5}


@pytest.mark.parametrize(("gives", "moved"), [(lambda reward: reward, 0), (lambda reward: reward - 0.5, 1)])
def test_the_reward_of_several_turns_is_the_sum_of_its_steps(
    told: Callable[[], TurnsJoined], monkeypatch: pytest.MonkeyPatch, gives: Callable[[float], float], moved: int
) -> None:
    monkeypatch.setattr(SeveralTurns, "gives", staticmethod(gives))
    patches = Patches()
    agents.place_hooks(patches, module := SimpleNamespace(_load_agent_executor=lambda path: SeveralTurns()))
    executor = module._load_agent_executor("agent.py")
    asked = {"prompt": "p:", "label": "5", "sampling_params": SimpleNamespace(max_tokens=3), "max_length": 40}
    try:
        asyncio.run(executor.execute(**asked, llm_engine=CuttingEngine(), hf_tokenizer=Tokenizer()))
    finally:
        assert patches.restore() == []
    found = told()
    assert (found.rewards_compared, found.rewards_moved, found.tokens_moved, found.left_out_why) == (1, moved, 0, "")


class Slotted:
    """An agent whose methods nobody can replace."""

    __slots__ = ()
    reset, step = Stepping.reset, Stepping.step


class SlottedTurns(SeveralTurns):
    def __init__(self) -> None:
        self.agent_instance_cls = Slotted


class NoList:
    """Texts that can be looked up, and not gone through."""

    __iter__ = None

    def __init__(self, text: str) -> None:
        self._text = text

    def __getitem__(self, place: int) -> str:
        return self._text


class AskedWithoutList(OneTurn):
    asks = staticmethod(lambda query, prompt, label: (NoList(query), [prompt], [label]))


@pytest.mark.parametrize("executor", [AskedWithoutList, SlottedTurns])
def test_a_reward_that_cannot_be_followed_is_unseen(told: Callable[[], TurnsJoined], executor: type) -> None:
    patches = Patches()
    agents.place_single_turn_hooks(patches, SimpleNamespace(SingleTurnAgentExecutor=executor))
    agents.place_hooks(patches, module := SimpleNamespace(_load_agent_executor=lambda path: executor()))
    running = module._load_agent_executor("agent.py")
    asked = {"prompt": "p:", "label": "5", "sampling_params": SimpleNamespace(max_tokens=3), "max_length": 40}
    try:
        answer = asyncio.run(running.execute(**asked, llm_engine=CuttingEngine(), hf_tokenizer=Tokenizer()))
    finally:
        assert patches.restore() == []
    found = told()
    assert answer["reward"] is not None
    assert (found.rewards_compared, found.rewards_unseen, found.left_out_why) == (0, 1, "")


def test_an_engine_is_still_what_it_was() -> None:
    engine = agents._Asked(Engine(), agents._Open({}))
    assert engine.name == "engine"
    assert isinstance(engine, Engine)
