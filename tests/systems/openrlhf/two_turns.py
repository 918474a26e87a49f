"""An agent of two turns with the word of an environment behind each, and mistakes in the answers of single rollouts.

OpenRLHF loads this file in the actors of its engines. `RLSTEP_TEST_TURNS=feedback_trained@1,token_swapped@2` names mistakes and the
rollouts (from 0) that they are made in.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import torch
import wrapt
from openrlhf.utils import agent
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "RLSTEP_TEST_TURNS"
SESSIONS = 16
"""Sessions of a rollout; one engine runs them all."""

_sessions = itertools.count()


class AgentInstance(AgentInstanceBase):
    """Says the same after each turn, and is done after the second."""

    def __init__(self) -> None:
        self.turns = 0

    async def step(self, state_dict: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Answer a turn."""
        self.turns += 1
        text = state_dict["action_text"]
        return {
            "rewards": torch.tensor(len(set(text)) / 10),
            "environment_feedback": " it is 3 ",
            "done": self.turns == 2,
            "extra_logs": {},
        }


class AgentExecutor(MultiTurnAgentExecutor):
    """What OpenRLHF asks for."""

    def __init__(self) -> None:
        super().__init__(AgentInstance)


def _feedback_trained(answer: dict[str, Any]) -> None:
    first, last = answer["action_ranges"][0], answer["action_ranges"][-1]
    answer["action_ranges"] = [(first[0], last[1])]


def _token_swapped(answer: dict[str, Any]) -> None:
    place = answer["action_ranges"][0][0]
    answer["observation_tokens"] = [*answer["observation_tokens"]]
    answer["observation_tokens"][place] = abs(answer["observation_tokens"][place] - 1)


def _spans_late(answer: dict[str, Any]) -> None:
    answer["action_ranges"] = [(start + 1, end + 1) for start, end in answer["action_ranges"]]


def _log_probs_early(answer: dict[str, Any]) -> None:
    answer["rollout_log_probs"] = [*answer["rollout_log_probs"][1:], 0.0]


MISTAKES: dict[str, tuple[str, Callable[[dict[str, Any]], None]]] = {
    "feedback_trained": ("RLS518", _feedback_trained),
    "token_swapped": ("RLS306", _token_swapped),
    "spans_late": ("RLS518", _spans_late),
    "log_probs_early": ("RLS305", _log_probs_early),
}
"""Name of a mistake -> the rule that names it, and what makes it."""


class _Short(wrapt.ObjectProxy):  # type: ignore[misc, type-arg]  # wrapt's proxy is not typed
    """An engine that samples few tokens in a turn, so that a second one has room."""

    async def generate(self, prompt: Any, sampling: Any, **kwargs: Any) -> Any:
        """Ask the engine for few tokens."""
        sampling.max_tokens = min(sampling.max_tokens, 8)
        return await self.__wrapped__.generate(prompt, sampling, **kwargs)


async def _execute(wrapped: Any, executor: Any, args: Any, kwargs: Any) -> Any:
    rollout = next(_sessions) // SESSIONS
    answer = await wrapped(*args, **{**kwargs, "llm_engine": _Short(kwargs["llm_engine"])})
    for each in filter(None, os.environ.get(VARIABLE, "").split(",")):
        name, _, wrong = each.partition("@")
        if rollout == int(wrong):
            MISTAKES[name][1](answer)
    return answer


wrapt.wrap_function_wrapper(agent.MultiTurnAgentExecutor, "execute", _execute)
