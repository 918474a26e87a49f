"""What the reward of an answer was given for, and what became of it, in the actors of OpenRLHF's engines.

Verified in 0.11.2: an executor of one turn asks a function or a server about each answer alone, with the text of prompt and answer,
the prompt and its label (utils/agent.py:281-289). One of several turns adds up what the steps of its agent give (utils/agent.py:127).
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.observe.guard import contained

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.observe.hooks import Call, Hooks

_REWARDS = ("rewards",)
"""What is not observed where a hook fails."""
OTHER_TEXT = "the reward function was asked about another text than the prompt and the tokens that were sampled"
OTHER_PROMPT = "the reward function was asked about another prompt"
OTHER_LABEL = "the reward function was asked with the label of another prompt"
OTHER_REWARD = "the answer has another reward than was given for it"
OTHER_SCORE = "the answer has another score than was given for it, and groups are filtered by scores"
OTHER_NAME = "the answer came back under another prompt or label than was asked for"
OTHER_END = "the answer says otherwise than the engine whether the longest length cut it off"


class _Call(msgspec.Struct):
    """One answer that was asked about: copies, because a function may write to the lists that it gets."""

    queries: list[Any]
    prompts: list[Any]
    labels: list[Any]
    reward: float | None = None
    """What was given; None where that is not one number."""
    score: float | None = None
    """The score that was given besides, else the reward (utils/agent.py:294)."""


class Graded:
    """One session: what it was asked for, and what its rewards were given for.

    Args:
        prompt: What the executor was called with.
        label: The label of that.
    """

    def __init__(self, prompt: Any, label: Any) -> None:
        self._prompt = prompt
        self._label = label
        self._calls: list[_Call] = []
        self._steps: list[float | None] = []
        """What each step of the agent gave."""
        self._score: float | None = None
        """The score that the latest step gave besides; None where it gave none (utils/agent.py:128)."""
        self._labels_of_steps: list[Any] = []
        self.began_with: Any = prompt
        """The text that the first turn is asked with; an agent may make another one of the prompt."""
        self.cut_off = False
        """Whether the longest length cut the latest turn off, as the engine says."""
        self.trouble = ""
        """Why nothing is compared; empty where it is."""

    @property
    def recorder(self) -> Graded:
        """Learns what is not observed: the session itself."""
        return self

    def cannot(self, what: str, why: str) -> None:
        """Note that nothing is compared."""
        self.trouble = why

    @contained(*_REWARDS)
    def asked(self, queries: Any, prompts: Any, labels: Any) -> _Call:
        """A reward function or server is about to be asked."""
        self._calls.append(_Call(list(queries), list(prompts), list(labels)))
        return self._calls[-1]

    @contained(*_REWARDS)
    def follow(self, agent: Any) -> None:
        """Look at what an agent says. It lives for this session alone, so nothing is taken off again."""
        reset, step = agent.reset, agent.step

        async def seen_reset(*given: Any, **named: Any) -> Any:
            result = await reset(*given, **named)
            self.began(result)
            return result

        async def seen_step(*given: Any, **named: Any) -> Any:
            result = await step(*given, **named)
            self.stepped(given, result)
            return result

        agent.reset, agent.step = seen_reset, seen_step

    @contained(*_REWARDS)
    def began(self, result: Any) -> None:
        """The agent has made the text that the first turn is asked with."""
        self.began_with = result["observation"]

    @contained(*_REWARDS)
    def stepped(self, given: tuple[Any, ...], result: Any) -> None:
        """The agent made a step."""
        self._labels_of_steps.append(given[0].get("label"))
        self._steps.append(_number(result["rewards"]))
        self._score = _number(result.get("scores"))

    @property
    def is_seen(self) -> bool:
        """Whether it was seen what the reward of an answer was given for."""
        return not self.trouble and bool(self._calls or self._steps)

    def difference(self, response: dict[str, Any], text: str | None) -> str:
        """What is wrong with an answer, in words; empty where nothing is.

        Args:
            response: The answer.
            text: That of the tokens of prompt and answer; None where it is not compared.
        """
        for call in self._calls:
            if text is not None and call.queries != [text]:
                return OTHER_TEXT
            if call.prompts != [self._prompt]:
                return OTHER_PROMPT
            if _differ(call.labels, [self._label]):
                return OTHER_LABEL
        if any(_differ(label, self._label) for label in self._labels_of_steps):
            return OTHER_LABEL
        if response.get("prompt") != self._prompt or _differ(response.get("label"), self._label):
            return OTHER_NAME
        given = self._given()
        if given is not None and not _same_number(given, _number(response.get("reward"))):
            return OTHER_REWARD
        score = self._calls[-1].score if self._calls else self._score
        if score is not None and not _same_number(score, _number(response.get("scores"))):
            return OTHER_SCORE
        if bool(response.get("truncated", self.cut_off)) != self.cut_off:
            return OTHER_END
        return ""

    def _given(self) -> float | None:
        """The reward of the answer; None where it is not known."""
        if self._calls:
            return self._calls[-1].reward
        numbers = [step for step in self._steps if step is not None]
        return sum(numbers) if numbers and len(numbers) == len(self._steps) else None


_now: ContextVar[Graded | None] = ContextVar("rlstep_graded", default=None)
"""The session of the task that runs; a thread that a function is called in has a copy of it."""


@contextmanager
def session_of(graded: Graded) -> Iterator[None]:
    """What is asked and given within belongs to this session."""
    token = _now.set(graded)
    try:
        yield
    finally:
        _now.reset(token)


def place_on_single_turns(hooks: Hooks, executor_class: Any) -> None:
    """Put the hooks on an executor of one turn."""
    # utils/agent.py:203: the function is read from its file when an executor is built.
    hooks.wrap(executor_class, "__init__", after=partial(_built, hooks), topics=_REWARDS)
    if hasattr(executor_class, "_fetch_rewards_via_http"):
        hooks.wrap(executor_class, "_fetch_rewards_via_http", around=_served, topics=_REWARDS)


def place_on_agents(hooks: Hooks, executor: Any) -> None:
    """Put the hook on an executor of several turns, which builds an agent for each session (utils/agent.py:42)."""
    if hasattr(executor, "agent_instance_cls"):
        hooks.wrap(executor, "agent_instance_cls", after=_agent, topics=_REWARDS)


def _built(hooks: Hooks, call: Call) -> None:
    if getattr(call.owner, "reward_func", None) is not None:
        hooks.wrap(call.owner, "reward_func", around=_called, topics=_REWARDS)


def _called(call: Call) -> Iterator[None]:
    asked = _asked(call)
    yield
    if asked is not None:
        asked.reward, asked.score = _given_in(call.result)


def _served(call: Call) -> Iterator[None]:
    asked = _asked(call)
    yield
    if asked is not None:
        single = isinstance(call.result, list) and len(call.result) == 1
        asked.reward, asked.score = _given_in(call.result[0] if single else None)


def _asked(call: Call) -> _Call | None:
    """Note what a function or server is asked about within a session."""
    graded = _now.get()
    return None if graded is None else graded.asked(*call.args)


def _agent(call: Call) -> None:
    graded = _now.get()
    if graded is not None:
        graded.follow(call.result)


def _given_in(result: Any) -> tuple[float | None, float | None]:
    """The reward and the score that a function or server gave; each None where it is not one number."""
    if not isinstance(result, dict):
        return None, None
    reward, score = _number(result.get("rewards")), result.get("scores")
    return reward, reward if score is None else _number(score)


def _number(value: Any) -> float | None:
    """One number, whatever holds it; None for anything else."""
    while isinstance(value, list | tuple) and len(value) == 1:
        [value] = value
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def _same_number(one: float, other: float | None) -> bool:
    return other is None or one == other or (math.isnan(one) and math.isnan(other))


def _differ(one: Any, other: Any) -> bool:
    """Whether two labels are known to differ: those that do not compare as one may be equal."""
    try:
        return bool(one != other)
    except (TypeError, ValueError, RuntimeError):
        return False
