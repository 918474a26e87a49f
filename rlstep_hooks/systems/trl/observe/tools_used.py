"""What tools were called with and returned in one rollout, beside what stands of it in the conversations and the rows.

GRPOTrainer keeps the tools of each sample in two dictionaries, made anew for each batch, and calls them in `_tool_call_loop`. What a
tool returns is a message, as text unless it is a list of blocks, and an exception is one too; the tokens of these messages are what
the chat template adds for them behind a call (grpo_trainer.py 1.16.0:1893, 1966-2031).
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.turn_rows import Difference, Ids, Message
from rlstep_hooks.systems.trl.observe.messages_read import message_of, reader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.session.recorder import Recorder

_RENDERED = 4
"""Samples of a rollout whose messages are rendered again, since that costs time; others each time."""
_SHOWN = 60
"""Characters of a result that a finding has."""


class Written(msgspec.Struct, frozen=True):
    """What tools wrote into one sample."""

    between: list[Ids] | None = None
    """The tokens that belong behind each turn that called a tool; None where they were not rendered."""
    wrong: Difference | None = None
    """What is wrong with the messages of the sample, beside what its tools really did."""
    said: list[Message | None] | None = None
    """The message of each turn; None where they are not read again."""
    read: Callable[[Ids, Ids], Message | None] | None = None
    """Reads the message of a turn from its tokens."""


class Spoken(msgspec.Struct, frozen=True):
    """What was said in the samples of one rollout."""

    conversations: list[list[dict[str, Any]]] = []
    """The messages of policy and tools in each sample; none where they were not seen."""
    environments: list[Any] = []
    """The environment of each sample; none where there are none."""


class _Used(msgspec.Struct):
    """One call of a tool."""

    arguments: dict[str, Any]
    content: Any = None
    """What the message should hold; None until the call is over."""


class ToolWatch:
    """Follows the tools of one trainer.

    Args:
        trainer: The live trainer.
    """

    def __init__(self, trainer: Any, recorder: Recorder) -> None:
        self._trainer = trainer
        self.recorder = recorder
        """Learns what is not observed."""
        self._looks = False
        self._used: list[dict[str, list[_Used]]] = []
        """For each sample, the calls of each tool that is followed."""
        self._of_others: dict[int, Difference] = {}
        """Samples with tools that are not theirs."""
        self.spoken = Spoken()
        """What was said in the rollout that is being made."""
        self._turn = 0

    def attach(self, hooks: Hooks) -> None:
        """Place the hook. The dictionaries of a batch have the tools themselves again behind the loop."""
        if getattr(self._trainer, "tools", None) and hasattr(self._trainer, "_tool_call_loop"):
            hooks.wrap(self._trainer, "_tool_call_loop", around=self._loops, topics=("mask",))

    def begin(self, *, looks: bool) -> None:
        """A rollout begins, whose tools are followed if `looks`."""
        self._looks, self._used, self.spoken, self._of_others = looks, [], Spoken(), {}

    def _loops(self, call: Call) -> Iterator[None]:
        held: list[tuple[dict[str, Any], dict[str, Any]]] = []
        if self._looks:
            self._follow(held)
        try:
            yield
        finally:
            for tools, own in held:
                tools.update(own)
        if self._looks and isinstance(call.result, tuple) and len(call.result) > 1:
            said = [[dict(message) for message in messages] for messages in call.result[1]]
            self.spoken = Spoken(said, list(self._trainer.environments or ()))

    @contained("mask")
    def _follow(self, held: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
        """Put what follows a tool in the place of each.

        Args:
            held: Takes the dictionaries, and what stood in each.
        """
        trainer = self._trainer
        dictionaries = list(zip(trainer._sync_tool_dicts, trainer._async_tool_dicts, strict=True))
        environments = trainer.environments or [None] * len(dictionaries)
        for place, (of_sample, environment) in enumerate(zip(dictionaries, environments, strict=True)):
            used: dict[str, list[_Used]] = {}
            self._used.append(used)
            for is_async, tools in enumerate(of_sample):
                held.append((tools, dict(tools)))
                for name, tool in list(tools.items()):
                    owner = getattr(tool, "__self__", None)
                    if owner is not environment and any(owner is one for one in environments):
                        like = "it has a tool of another sample's environment"
                        self._of_others[place] = Difference(like, f"tool {name!r}")
                    if inspect.isroutine(tool):  # whose name an error of Python's has, and so has what follows it
                        used[name] = []
                        tools[name] = (self._awaited if is_async else self._called)(tool, used[name])

    def _called(self, tool: Callable[..., Any], used: list[_Used]) -> Callable[..., Any]:
        """A tool that is followed."""

        @functools.wraps(tool)
        def called(*args: Any, **arguments: Any) -> Any:
            used.append(one := _Used(arguments))
            try:
                result = tool(*args, **arguments)
            except Exception as error:
                self._ended(one, {"error": str(error)})
                raise
            self._ended(one, result)
            return result

        return called

    def _awaited(self, tool: Callable[..., Any], used: list[_Used]) -> Callable[..., Any]:
        """A coroutine function that is followed. Its calls count in the order in which they were begun."""

        @functools.wraps(tool)
        def called(*args: Any, **arguments: Any) -> Any:
            used.append(one := _Used(arguments))
            return waits(one, tool(*args, **arguments))

        async def waits(one: _Used, begun: Any) -> Any:
            try:
                result = await begun
            except Exception as error:
                self._ended(one, {"error": str(error)})
                raise
            self._ended(one, result)
            return result

        return called

    @contained("mask")
    def _ended(self, one: _Used, result: Any) -> None:
        one.content = list(result) if isinstance(result, list) else str(result)

    def take(self) -> dict[int, Written]:
        """What tools wrote into each sample of the rollout; nothing where that was not followed."""
        used, conversations, of_others = self._used, self.spoken.conversations, self._of_others
        self.begin(looks=False)
        if len(conversations) != len(used):
            return {}
        step, self._turn = -(-len(conversations) // _RENDERED), self._turn + 1
        most = self._trainer.args.max_tool_calling_iterations or sys.maxsize
        found = {}
        for place, (messages, of_sample) in enumerate(zip(conversations, used, strict=True)):
            wrong = of_others.get(place) or other_messages(messages, of_sample, most)
            if wrong is not None or place % step != self._turn % step:
                found[place] = Written(wrong=wrong)
                continue
            said = [message_of(message) for message in messages if message.get("role") == "assistant"]
            found[place] = Written(self._rendered(messages), said=said, read=self._reader(place))
        return found

    def _reader(self, place: int) -> Callable[[Ids, Ids], Message | None]:
        """What reads the turns of a sample, with the tools that its prompt tells of."""
        trainer, tools = self._trainer, self._trainer.tools
        if getattr(trainer, "environment_factories", None) is not None:
            tools = trainer._env_tools[trainer._batch_environments[place]]
        return reader(trainer._tokenizer, tools)

    def _rendered(self, messages: Sequence[dict[str, Any]]) -> list[Ids] | None:
        """The tokens behind each turn that called a tool; None where the chat template does not give them in the documented way."""
        if getattr(self._trainer, "_is_vlm", False):
            return None
        behind = []
        for is_result, run in itertools.groupby(messages, lambda message: message.get("role") == "tool"):
            if is_result:
                tokens = self._behind_call(list(run))
                if tokens is None:
                    return None
                behind.append(tokens)
        return behind

    def _behind_call(self, results: list[dict[str, Any]]) -> Ids | None:
        """What the chat template adds, behind the end of a turn that called a tool, for the messages of its results."""
        function = {"name": results[0]["name"], "arguments": {}}
        call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
        before: list[dict[str, Any]] = [{"role": "user", "content": "dummy"}, call]
        begun = self._tokens(before, goes_on=False)
        whole = self._tokens([*before, *results], goes_on=True)
        end = self._trainer._tokenizer.eos_token_id
        length = len(begun) - begun[::-1].index(end) if end in begun else len(begun)
        return whole[length:] if whole[:length] == begun[:length] else None

    def _tokens(self, messages: list[dict[str, Any]], *, goes_on: bool) -> Ids:
        trainer = self._trainer
        return list(
            trainer.processing_class.apply_chat_template(
                messages,
                add_generation_prompt=goes_on,
                tokenize=True,
                chat_template=trainer.chat_template,
                return_dict=False,
                **trainer.chat_template_kwargs,
            )
        )


def other_messages(messages: Sequence[dict[str, Any]], used: dict[str, list[_Used]], most: int) -> Difference | None:
    """Say how the messages of one sample differ from what its tools did; None where they do not.

    Args:
        messages: What the policy and its tools said.
        used: The calls of each tool that is followed, in order.
        most: How many turns may call tools.
    """
    left = {name: iter(calls) for name, calls in used.items()}
    rounds = 0
    for place, message in enumerate(messages):
        if message.get("role") != "tool":
            rounds += bool(message.get("tool_calls"))
            continue
        name, said = message.get("name"), message.get("content")
        calls = left.get(str(name))
        if calls is None or _of_framework(said, used[str(name)]):
            continue
        one = next(calls, None)
        if one is None:
            return Difference(
                "it has a result of a tool that was not called", f"message {place}, of {name!r}: {_short(said)}"
            )
        if one.content is not None and one.content != said:
            like = "it has another result than its tool returned"
            return Difference(
                like, f"message {place}: {name!r} returned {_short(one.content)}, in the message {_short(said)}"
            )
    return _other_calls(messages, used, rounds, most)


def _of_framework(said: Any, used: list[_Used]) -> bool:
    """Whether a message tells of an error that came before the tool itself was called."""
    return isinstance(said, str) and said.startswith("{'error'") and all(one.content != said for one in used)


def _other_calls(
    messages: Sequence[dict[str, Any]], used: dict[str, list[_Used]], rounds: int, most: int
) -> Difference | None:
    """Say which call of a tool was made with other arguments than the policy gave, or was not made."""
    asked: dict[str, list[Any]] = {name: [] for name in used}
    for message in messages:
        for call in message.get("tool_calls") or ():
            function = call.get("function") or {}
            if call.get("type") == "function" and function.get("name") in asked:
                asked[function["name"]].append(function.get("arguments"))
    if any(not isinstance(one, dict) for of_tool in asked.values() for one in of_tool):
        return None  # Such a call fails before its tool is reached.
    for name, of_tool in asked.items():
        if len(used[name]) > len(of_tool):
            like = "a tool was called more often than the policy asked"
            return Difference(like, f"{name!r}: {len(used[name])} times, asked for {len(of_tool)} times")
        for given, one in zip(of_tool, used[name], strict=False):
            if given != one.arguments:
                like = "a tool was called with other arguments than the policy gave"
                return Difference(like, f"{name!r}: given {_short(given)}, called with {_short(one.arguments)}")
    last = messages[-1].get("tool_calls") if messages else None
    made = sum(map(len, used.values()))
    if last and rounds <= most and made < sum(map(len, asked.values())):
        return Difference(
            "it ends with a call of a tool that was not made", f"{len(last)} calls, {rounds} turns with calls"
        )
    return None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"
