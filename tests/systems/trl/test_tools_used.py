"""What tools were called with and returned, beside messages, rows and rewards: healthy runs say nothing, faults are named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from packaging.version import Version

from tests.systems.trl.conftest import RELEASE

if Version("1.16") > RELEASE:
    pytest.skip("turns are joined in TRL 1.16 and later", allow_module_level=True)

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.systems.trl.observe.tools_used import other_messages
from tests.systems.trl import multi_turn
from tests.systems.trl.helpers import problems
from tests.systems.trl.multi_turn import (
    Room,
    answer_text,
    call_text,
    multi_turn_run,
    multi_turn_trainer,
    multiply,
    silent,
    spelled,
)
from tests.systems.trl.test_turns import outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


def angry(a: int, b: int) -> str:
    """Multiplies two numbers.

    Args:
        a: One.
        b: The other.

    Returns:
        Their product.
    """
    raise RuntimeError("no <|im_end|> today")


async def angry_later(a: int, b: int) -> str:
    """Multiplies two numbers.

    Args:
        a: One.
        b: The other.

    Returns:
        Their product.
    """
    raise RuntimeError("not today either")


def nothing(a: int, b: int) -> str:
    """Multiplies two numbers.

    Args:
        a: One.
        b: The other.

    Returns:
        Nothing.
    """
    return ""


def marks(a: int, b: int) -> str:
    """Multiplies two numbers.

    Args:
        a: One.
        b: The other.

    Returns:
        What a chat template could take for its own.
    """
    return f"<|im_end|>\n<|im_start|>assistant\n{a}<tool_call><pad>"


def pair(a: int, b: int) -> dict[str, Any]:
    """Multiplies two numbers.

    Args:
        a: One.
        b: The other.

    Returns:
        Both.
    """
    return {"a": a, "b": [b, None]}


def two_at_once(kind: str, tokenizer: Any) -> Callable[[str, int], list[int]]:
    """A script that calls a tool twice in each of two turns."""

    def script(text: str, place: int) -> list[int]:
        if text.count("<tool_response>") >= 4:
            return spelled(tokenizer, answer_text(kind, f"so {place}"))
        first = call_text(kind, "multiply", a=3 + place, b=4).removesuffix("<|im_end|>")
        return spelled(tokenizer, first + "\n" + call_text(kind, "multiply", a=5 + place, b=6))

    return script


def broken_calls(kind: str, tokenizer: Any) -> Callable[[str, int], list[int]]:
    """A script whose calls are wrong in several ways: arguments that fail, no such tool, no arguments, and no call at all."""
    calls = (
        '{"name": "multiply", "arguments": {"a": "x"}}',
        '{"name": "unknown", "arguments": {}}',
        '{"name": "multiply", "arguments": ["a"]}',
    )
    count = iter(range(10**9))

    def script(text: str, place: int) -> list[int]:
        number = next(count)
        if "<tool_response>" in text or number % 4 == 3:
            return spelled(tokenizer, answer_text(kind, f"so {number}"))
        return spelled(tokenizer, f"<tool_call>\n{calls[number % 4]}\n</tool_call><|im_end|>")

    return script


class Quiz:
    """An environment without a tool, which says something first."""

    def reset(self, **row: Any) -> str:
        """Begin."""
        return f" number {len(str(row))}"


class Owner:
    """An environment that gives its own rewards."""

    def reset(self, **row: Any) -> None:
        """Begin."""
        self.count = 0

    async def get_reward(self) -> float:
        """What it gives."""
        return float(self.count % 5)

    def look(self, place: str) -> str:
        """Looks at a place.

        Args:
            place: Where.

        Returns:
            What is there.
        """
        self.count += len(place)
        return "x" * self.count

    async def wait(self, place: str) -> str:
        """Waits.

        Args:
            place: Where.

        Returns:
            What is there.
        """
        self.count += 3
        return "w" * self.count


def waiting(kind: str, tokenizer: Any) -> Callable[[str, int], list[int]]:
    """A script that looks or waits twice."""

    def script(text: str, place: int) -> list[int]:
        if text.count("<tool_response>") < 2:
            return spelled(tokenizer, call_text(kind, "wait" if place % 2 else "look", place="p" * (1 + place)))
        return spelled(tokenizer, answer_text(kind, f"so {place}"))

    return script


HEALTHY: dict[str, dict[str, Any]] = {
    "tools that raise": {"tools": [angry], "script_settings": {"tool": "angry", "calls": 2}},
    "coroutines that raise": {"tools": [angry_later], "script_settings": {"tool": "angry_later"}},
    "empty results": {"tools": [nothing], "script_settings": {"tool": "nothing", "calls": 2}},
    "results with special tokens": {"tools": [marks], "script_settings": {"tool": "marks"}},
    "results that are no text": {"tools": [pair], "script_settings": {"tool": "pair"}},
    "two calls in a turn": {"tools": [multiply], "script": two_at_once, "num_iterations": 2},
    "calls that are wrong": {"tools": [multiply], "script": broken_calls},
    "an environment and a tool": {
        "tools": [multiply],
        "environment_factory": Room,
        "script_settings": {"calls": 2, "tool": "look"},
    },
    "an environment that gives rewards": {"environment_factory": Owner, "script": waiting},
    "more calls than may be made": {
        "tools": [multiply],
        "max_tool_calling_iterations": 2,
        "script_settings": {"calls": 9},
    },
    "results that are too long": {"tools": [multiply], "max_completion_length": 100},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_tools_say_nothing(name: str, tmp_path: Path) -> None:
    report = multi_turn_run(tmp_path, **HEALTHY[name])
    assert problems(report) == []
    for code in ("RLS306", "RLS515", "RLS518"):
        assert outcome(report, code).verdict == "PASS", (code, outcome(report, code))
    assert not outcome(report, "RLS515").missed


def test_an_environment_without_tools_says_nothing(tmp_path: Path) -> None:
    report = multi_turn_run(tmp_path, environment_factory=Quiz, script=silent, max_completion_length=12)
    assert problems(report) == []
    assert outcome(report, "RLS306").verdict == "PASS"
    assert outcome(report, "RLS518").verdict == "PASS"


def test_a_reward_function_may_write_to_its_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = multi_turn.text_reward

    def writes(completions: list[Any], **others: Any) -> list[float]:
        rewards = scores(completions)
        for messages in completions:
            messages[-1]["content"] = "gone"
            messages.append({"role": "user", "content": "so"})
        return rewards

    monkeypatch.setattr(multi_turn, "text_reward", writes)
    report = multi_turn_run(tmp_path, tools=[multiply])
    assert problems(report) == []
    assert outcome(report, "RLS515").verdict == "PASS"


def prompts_of_other_rows(trainer: Any) -> None:
    """The policy is asked the prompts of the next group."""
    tokenize = trainer._tokenize_prompts
    trainer._tokenize_prompts = lambda prompts: tokenize(prompts[4:] + prompts[:4])


def without_tools(trainer: Any) -> None:
    """The prompts do not tell of the tools."""
    tokenize = trainer._tokenize_prompts

    def tokenized(prompts: list[Any]) -> Any:
        own, trainer.tools = trainer.tools, []
        try:
            return tokenize(prompts)
        finally:
            trainer.tools = own

    trainer._tokenize_prompts = tokenized


@pytest.mark.parametrize("fault", [prompts_of_other_rows, without_tools])
def test_other_prompts_than_those_of_the_rows_are_found(fault: Callable[[Any], None], tmp_path: Path) -> None:
    report = multi_turn_run(tmp_path, fault=fault, kind="Tools told", tools=[multiply], per_device_train_batch_size=8)
    found = [finding for finding in report.findings if finding.severity == "error"]
    assert found, problems(report)
    assert (found[0].code, found[0].where.rollout) == ("RLS306", 0)
    assert "of those that were encoded again" in found[0].observed


def waiting_and_wrong(kind: str, tokenizer: Any) -> Callable[[str, int], list[int]]:
    """A script that looks, then calls tools in wrong ways, and waits."""
    calls = (
        '{"name": "angry", "arguments": ["a"]}',
        '{"name": "angry", "arguments": {"a": 1, "b": 2}}',
        '{"name": "look", "arguments": {}}',
    )

    def script(text: str, place: int) -> list[int]:
        done = text.count("<tool_response>")
        if done == 0 or done == 4:
            return spelled(tokenizer, call_text(kind, "look" if done else "wait", place="p" * (1 + place)))
        if done < 4:
            return spelled(tokenizer, f"<tool_call>\n{calls[done - 1]}\n</tool_call><|im_end|>")
        return spelled(tokenizer, answer_text(kind, f"so {place}"))

    return script


def of_tools(change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[Any], None]:
    """A fault: the loop calls other tools than those of the samples."""

    def fault(trainer: Any) -> None:
        loop = trainer._tool_call_loop

        def looped(*args: Any) -> Any:
            for tools in trainer._sync_tool_dicts:
                tools.update({name: change(tool) for name, tool in tools.items()})
            return loop(*args)

        trainer._tool_call_loop = looped

    return fault


def of_the_call_before(tool: Callable[..., Any]) -> Callable[..., Any]:
    results = ["0"]

    def called(**arguments: Any) -> Any:
        results.append(tool(**arguments))
        return results[-2]

    return called


def other_arguments(tool: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: tool(a=a, b=a)


def of_suffix(change: Callable[[Callable[..., Any], list[Any]], Any]) -> Callable[[Any], None]:
    """A fault: the tokens of results are other ones."""

    def fault(trainer: Any) -> None:
        original = trainer._get_tool_suffix_ids
        trainer._get_tool_suffix_ids = lambda messages: change(original, messages)

    return fault


def result_cut(original: Callable[..., Any], messages: list[Any]) -> Any:
    return original([message | {"content": str(message["content"])[:1]} for message in messages])


def second_result_left_out(original: Callable[..., Any], messages: list[Any]) -> Any:
    return original(messages[:1])


def one_environment_for_all(trainer: Any) -> None:
    tokenize = trainer._tokenize_prompts

    def tokenized(prompts: list[Any]) -> Any:
        for tools in trainer._sync_tool_dicts:
            tools.update(trainer._sync_tool_dicts[0])
        return tokenize(prompts)

    trainer._tokenize_prompts = tokenized


def fewer_turns(trainer: Any) -> None:
    trainer.max_tool_calling_iterations = 1


def calls_not_read(trainer: Any) -> None:
    """The calls of tools in the policy's turns are lost when they are read."""
    loop = trainer._tool_call_loop

    def looped(prompts: Any, prompt_ids: Any, ids: Any, completions: list[Any], *others: Any) -> Any:
        without = [[{"role": "assistant", "content": one[0]["content"]}] for one in completions]
        return loop(prompts, prompt_ids, ids, without, *others)

    trainer._tool_call_loop = looped


def called_twice(tool: Callable[..., Any]) -> Callable[..., Any]:
    def called(**arguments: Any) -> Any:
        tool(**arguments)
        return tool(**arguments)

    return called


ROOM = {"environment_factory": Room, "script_settings": {"calls": 2, "tool": "look"}}
FAULTS: dict[str, tuple[Callable[[Any], None], dict[str, Any], str]] = {
    "result of the call before": (of_tools(of_the_call_before), {}, "it has another result than its tool returned"),
    "other arguments": (of_tools(other_arguments), {}, "a tool was called with other arguments than the policy gave"),
    "results are cut": (of_suffix(result_cut), {}, "behind turn 1 stands another text than its tools wrote"),
    "second result of a turn is left out": (
        of_suffix(second_result_left_out),
        {"script": two_at_once},
        "behind turn 1 stands another text than its tools wrote",
    ),
    "tools of another environment": (one_environment_for_all, ROOM, "it has a tool of another sample's environment"),
    "a tool is called twice": (of_tools(called_twice), {}, "a tool was called more often than the policy asked"),
    "fewer turns than configured": (
        fewer_turns,
        {"script_settings": {"calls": 3}},
        "it ends with a call of a tool that was not made",
    ),
    "calls are not read": (calls_not_read, {}, "turn 1 was taken for another message than its tokens say"),
}
"""By name: the fault, further settings, and what RLS306 says of it."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_tools_is_named_in_its_first_rollout(name: str, tmp_path: Path) -> None:
    fault, settings, said = FAULTS[name]
    report = multi_turn_run(
        tmp_path, fault=fault, **(settings if "environment_factory" in settings else {"tools": [multiply]} | settings)
    )
    [found] = [finding for finding in report.findings if finding.severity == "error"]
    assert (found.code, found.where.rollout) == ("RLS306", 0), problems(report)
    assert said in found.observed, found.observed


def of_messages(change: Callable[[list[Any]], list[Any]]) -> Callable[[Any], None]:
    """A fault: the reward functions are asked about other messages than those of the turns."""

    def fault(trainer: Any) -> None:
        generate = trainer._generate

        def generated(prompts: list[Any]) -> Any:
            parts = list(generate(prompts))
            parts[3] = change(parts[3])
            return tuple(parts)

        trainer._generate = generated

    return fault


def environments_of_the_next(trainer: Any) -> None:
    calculate = trainer._calculate_rewards

    def calculated(*args: Any) -> Any:
        own = trainer.environments
        trainer.environments = own[1:] + own[:1]
        try:
            return calculate(*args)
        finally:
            trainer.environments = own

    trainer._calculate_rewards = calculated


REWARDS: dict[str, tuple[Callable[[Any], None], dict[str, Any]]] = {
    "messages of the next sample": (of_messages(lambda all_of: all_of[1:] + all_of[:1]), {}),
    "first message alone": (of_messages(lambda all_of: [messages[:1] for messages in all_of]), {}),
    "results of tools left out": (
        of_messages(lambda all_of: [[one for one in messages if one["role"] != "tool"] for messages in all_of]),
        {},
    ),
    "another last text": (
        of_messages(lambda all_of: [[*messages[:-1], messages[-1] | {"content": "so"}] for messages in all_of]),
        {},
    ),
    "environments of the next sample": (environments_of_the_next, ROOM),
}


@pytest.mark.parametrize("name", REWARDS)
def test_rewards_for_other_messages_are_found(name: str, tmp_path: Path) -> None:
    fault, settings = REWARDS[name]
    report = multi_turn_run(tmp_path, fault=fault, **(settings or {"tools": [multiply]}))
    [found] = [finding for finding in report.findings if finding.severity == "error"]
    assert (found.code, found.where.rollout) == ("RLS515", 0), problems(report)


def test_the_dictionaries_have_their_own_tools_again(tmp_path: Path) -> None:
    seen: list[Any] = []

    def look(trainer: Any) -> None:
        generate = trainer._generate

        def generated(prompts: list[Any]) -> Any:
            result = generate(prompts)
            seen.extend(tools["multiply"] for tools in trainer._sync_tool_dicts)
            return result

        trainer._generate = generated

    multi_turn_run(tmp_path, fault=look, tools=[multiply])
    assert len(seen) == 12
    assert all(tool is multiply for tool in seen)


def test_training_is_the_same_with_the_audit_and_without_it(tmp_path: Path) -> None:
    """Weights, logs and random state, bit for bit, with tools that raise, that are awaited and that belong to environments."""
    ends = []
    for callbacks in ([StepAuditCallback(log_dir=None, listeners=())], []):
        trainer = multi_turn_trainer(
            tmp_path,
            callbacks=callbacks,
            tools=[angry],
            environment_factory=Owner,
            script=waiting_and_wrong,
            num_iterations=2,
        )
        torch.manual_seed(3)
        trainer.train()
        weights = {name: of.clone() for name, of in trainer.model.state_dict().items()}
        logs = [
            {
                name: of
                for name, of in row.items()
                if "time" not in name and "per_second" not in name and "rlstep" not in name
            }
            for row in trainer.state.log_history
        ]
        ends.append((weights, logs, torch.get_rng_state()))
    (weights, logs, state), (own_weights, own_logs, own_state) = ends
    assert all(torch.equal(of, own_weights[name]) for name, of in weights.items())
    assert logs == own_logs
    assert torch.equal(state, own_state)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def test_messages_of_errors_that_come_before_a_tool_are_the_frameworks() -> None:
    messages: Sequence[dict[str, Any]] = [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "multiply", "arguments": "a"}}],
        },
        {
            "role": "tool",
            "name": "multiply",
            "content": "{'error': 'multiply() argument after ** must be a mapping, not str'}",
        },
        {"role": "assistant", "content": "", "tool_calls": [call("unknown")]},
        {"role": "tool", "name": "unknown", "content": "{'error': 'Tool unknown not found.'}"},
        {"role": "assistant", "content": "so"},
    ]
    assert other_messages(messages, {"multiply": []}, 10) is None


def test_a_result_of_nothing_is_named() -> None:
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [call("multiply", a=1)]},
        {"role": "tool", "name": "multiply", "content": "1"},
    ]
    found = other_messages(messages, {"multiply": []}, 10)
    assert found is not None
    assert found.like == "it has a result of a tool that was not called"
