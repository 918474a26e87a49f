"""The turns of OpenRLHF's agents against the rows and rewards that they answer with, in the actors of the engines where agents run.

An agent asks the engine that it was given; what it asks and gets stands in plain lists. What a comparison finds goes to a file that
the controller reads (`rlstep_hooks.observe.turn_records`).
"""

from __future__ import annotations

import itertools
import math
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import wrapt

from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.hooks import Call, Hooks, LateRecorder
from rlstep_hooks.observe.kept_turns import KeptTurns
from rlstep_hooks.observe.token_origins import compare_row, compare_rows
from rlstep_hooks.observe.turn_records import Session, write
from rlstep_hooks.observe.turn_rows import Joined, Request, Row, RowRule
from rlstep_hooks.systems.openrlhf.observe.graded_answers import (
    Graded,
    place_on_agents,
    place_on_single_turns,
    session_of,
)
from rlstep_hooks.systems.openrlhf.observe.process import folder, run_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlstep_hooks.observe.patches import Patches

_TURNS = ("mask",)
"""What is not observed where a hook fails."""
_ANY_LENGTH = 1 << 60
_ALL_OF_FIRST, _ONE_OF = 1024, 16
"""Sessions whose texts and prompts are compared: all of the first of a process, then one of so many, because encoding and decoding
cost time."""
_OTHER_PROMPT = "the prompt has other tokens than the tokenizer gives for its text"
_numbers = itertools.count()


def place_single_turn_hooks(patches: Patches, module: Any) -> None:
    """Put the hook on the executor of `openrlhf.utils.agent` that runs where no agent is configured."""
    hooks = Hooks(LateRecorder(lambda: None), patches)
    # Verified in 0.11.2: one call is one sample (utils/agent.py:192, called at vllm_engine.py:189).
    hooks.wrap(module.SingleTurnAgentExecutor, "execute", around=_session, topics=_TURNS)
    place_on_single_turns(hooks, module.SingleTurnAgentExecutor)


def place_hooks(patches: Patches, module: Any) -> None:
    """Put the hook on agents as `openrlhf.trainer.ray.vllm_engine` loads them."""
    hooks = Hooks(LateRecorder(lambda: None), patches)
    # Verified in 0.11.2: loads the class AgentExecutor of the configured file (vllm_engine.py:19).
    hooks.wrap(module, "_load_agent_executor", after=partial(_loaded, hooks), topics=_TURNS)


def _loaded(hooks: Hooks, call: Call) -> None:
    """Put the hooks on an executor. Without them the controller finds no line, and compares nothing."""
    # The class may be a child of one of OpenRLHF's that is observed already, so the object carries the hook.
    hooks.wrap(call.result, "execute", around=_session, topics=_TURNS)
    place_on_agents(hooks, call.result)


class _Open:
    """A session that is being generated. It is what learns that an observation failed: its line tells the controller."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self.found = Joined()
        """What was compared of its answer."""
        self.turns = KeptTurns()
        self.graded = Graded(asked.get("prompt"), asked.get("label"))
        self.number = next(_numbers)
        self.longest_prompt: int | None = None
        """Tokens of the longest prompt that is not cut; None where that is not known."""
        self.why_not = ""
        """Why its answer is not compared; empty where it is."""
        self.own_loop = False
        """Whether the executor has a loop of its own."""

    @property
    def recorder(self) -> _Open:
        """Learns what is not observed: the session itself."""
        return self

    def cannot(self, what: str, why: str) -> None:
        """Note that its answer is not compared."""
        self.why_not = why

    @contained(*_TURNS)
    def begins(self, executor: Any, asked: dict[str, Any]) -> dict[str, Any] | None:
        """Look at what an agent is called with.

        Returns:
            What it is called with instead; None where its answer is not compared.
        """
        self.why_not = _why_not(asked)
        self.own_loop = _has_own_loop(executor)
        self.longest_prompt = _longest_prompt(asked)
        return None if self.why_not else {**asked, "llm_engine": _Asked(asked["llm_engine"], self)}

    @contained(*_TURNS)
    def asks(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
        """Take the tokens that the engine is asked with."""
        return list(kwargs["prompt_token_ids"] if "prompt_token_ids" in kwargs else args[0])

    @contained(*_TURNS)
    def answers(self, asked: list[int], result: Any) -> None:
        """Note a turn of the engine."""
        self.turns.add(_turn(asked, result.outputs[0]))
        self.graded.cut_off = getattr(result.outputs[0], "finish_reason", None) == "length"

    @contained(*_TURNS)
    def ends(self, response: Any, asked: dict[str, Any]) -> None:
        """Compare the answer with the turns."""
        if self.why_not:
            return
        tokenizer = asked["hf_tokenizer"]
        found = self.found = _compare(self, response, tokenizer)
        _compare_prompt(found, self, tokenizer)
        _compare_reward(found, self, response, tokenizer)
        if not found.rows:
            self.why_not = "an answer begins with a prompt that no turn was asked for"
        if not self.turns:
            self.why_not = "the engine was not asked for any turn of an answer"

    @contained(*_TURNS)
    def write(self) -> None:
        """Write down what was found. Where the folder is on another machine the controller finds no line, and compares nothing."""
        write(folder(), run_name(), Session(f"{os.getpid()}_{self.number}", self.found, self.why_not))


class _Asked(wrapt.ObjectProxy):  # type: ignore[type-arg]  # an engine of any class
    """An engine that notes what it is asked for in one session."""

    def __init__(self, engine: Any, session: _Open) -> None:
        super().__init__(engine)
        self._self_session = session

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Ask the engine, and note prompt, tokens and log-probs of this turn."""
        session = self._self_session
        asked = session.asks(args, kwargs) or []
        result = await self.__wrapped__.generate(*args, **kwargs)
        session.answers(asked, result)
        return result


def _turn(asked: list[int], given: Any) -> Request:
    tokens = list(given.token_ids)
    found = (each.get(token) for each, token in zip(given.logprobs or (), tokens, strict=False))
    drawn = [math.nan if one is None else float(one.logprob) for one in found]
    return Request(asked, tokens, drawn or None)


def _session(call: Call) -> Iterator[None]:
    if type(call.kwargs.get("llm_engine")) is _Asked:  # the same session, seen by the object and by its class
        yield
        return
    session = _Open(call.kwargs)
    call.kwargs = session.begins(call.owner, call.kwargs) or call.kwargs
    with session_of(session.graded):
        yield
    session.ends(call.result, call.kwargs)
    session.write()


def _why_not(asked: dict[str, Any]) -> str:
    """Why an answer is not compared with its turns; empty where it is."""
    if asked.get("llm_engine") is None:
        return "the agent was called in another way than OpenRLHF calls it"
    if asked.get("images"):
        return "the prompt has images, which count tokens otherwise"
    return ""


def _longest_prompt(asked: dict[str, Any]) -> int | None:
    """Tokens of a prompt that leave room for an answer; longer ones lose their beginning (utils/agent.py:64, 229)."""
    most, answer = asked.get("max_length"), getattr(asked.get("sampling_params"), "max_tokens", None)
    return None if most is None or answer is None else max(int(most) - int(answer), 0)


def _has_own_loop(executor: Any) -> bool:
    """Whether the loop of an executor is not one of OpenRLHF's."""
    return next(each for each in type(executor).__mro__ if "execute" in vars(each)).__module__ != "openrlhf.utils.agent"


def _compare(session: _Open, response: dict[str, Any], tokenizer: Any) -> Joined:
    tokens = [int(token) for token in response["observation_tokens"]]
    spans = response["action_ranges"]
    begins = spans[0][0] if spans else len(tokens)
    trained = [0] * len(tokens)
    for start, end in spans:
        trained[start:end] = [1] * (end - start)
    drawn = response.get("rollout_log_probs")
    row = Row(
        prompt=tokens[:begins],
        completion=tokens[begins:],
        trained=trained[begins:],
        log_probs=[float(one) for one in drawn[begins:]] if drawn else None,
        name=f"an answer to {str(response.get('prompt'))[:40]!r}",
    )
    rule = RowRule(
        decode=lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False)),
        longest=_ANY_LENGTH,
        closers=frozenset(),
        masks_truncated=False,
        # A loop of one's own may cut turns, leave some untrained, or ask the engine for other things too.
        exact=not session.own_loop,
        # What the environment says when it is done stands in the row (utils/agent.py:165).
        goes_on=True,
    )
    turns = session.turns.all()
    return compare_rows([row], turns, rule) if session.own_loop else compare_row(row, turns, rule)


def _is_encoded(session: _Open) -> bool:
    """Whether texts of a session are compared with its tokens."""
    return not session.own_loop and (session.number < _ALL_OF_FIRST or session.number % _ONE_OF == 0)


def _compare_prompt(found: Joined, session: _Open, tokenizer: Any) -> None:
    """Compare the prompt of the first turn with what the tokenizer makes of its text, where nothing else is wrong with the row."""
    text, turns, longest = session.graded.began_with, session.turns.all(), session.longest_prompt
    if found.tokens_moved or not turns or longest is None or not isinstance(text, str) or not _is_encoded(session):
        return
    encoded = list(tokenizer(text=text, add_special_tokens=False)["input_ids"])
    if encoded and isinstance(encoded[0], list):  # a processor gives a list for each text
        [encoded] = encoded
    if 0 < len(encoded) <= longest and encoded != turns[0].asked:
        found.tokens_moved += 1
        found.tokens_like, found.tokens_at = _OTHER_PROMPT, f"an answer to {text[:40]!r}"


def _compare_reward(found: Joined, session: _Open, response: dict[str, Any], tokenizer: Any) -> None:
    """Compare the reward of an answer with what was given, and what it was given for with the answer."""
    if session.own_loop or not session.graded.is_seen:
        # Without a reward in the answer a model gives it, which is looked at where it computes.
        found.rewards_unseen += response.get("reward") is not None
        return
    turns = session.turns.all()
    single = len(turns) == 1 and _is_encoded(session)
    text = str(tokenizer.decode(turns[0].whole, skip_special_tokens=False)) if single else None
    found.rewards_compared += 1
    found.rewards_like = session.graded.difference(response, text)
    found.rewards_moved += bool(found.rewards_like)
