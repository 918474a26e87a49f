"""A tool that is called in the first turns of each session, and mistakes in the rows of single rollouts.

verl imports this module in every process. The tiny model never writes a call, so a parser finds one in the first turn of each session.
`RLSTEP_TEST_TURNS=tool_trained@1,token_swapped@2` names mistakes and the rollouts (from 0) that they are made in.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import wrapt

from tests.systems.verl.launch import ALWAYS_CALLS

if TYPE_CHECKING:
    from collections.abc import Callable

MODULE = __name__
VARIABLE = "RLSTEP_TEST_TURNS"
SESSIONS = 8
"""Sessions of a rollout; one process runs them all."""

_sessions = itertools.count()

TOOL = "verl.experimental.agent_loop.tool_agent_loop"
PARSERS = "verl.experimental.agent_loop.tool_parser"


def _tool_text_trained(output: Any, loop: Any) -> None:
    output.response_mask = [1] * len(output.response_mask)


def _token_swapped(output: Any, loop: Any) -> None:
    output.response_ids = [abs(output.response_ids[0] - 1), *output.response_ids[1:]]


def _mask_late(output: Any, loop: Any) -> None:
    output.response_mask = [0, *output.response_mask[:-1]]


def _last_untrained(output: Any, loop: Any) -> None:
    output.response_mask = [*output.response_mask[:-1], 0]


def _log_probs_early(output: Any, loop: Any) -> None:
    output.response_logprobs = [*output.response_logprobs[1:], 0.0]


def _turn_left_out(output: Any, loop: Any) -> None:
    first = output.response_mask.index(0) if 0 in output.response_mask else 1
    for name in ("response_ids", "response_mask", "response_logprobs"):
        setattr(output, name, getattr(output, name)[first:])


def _encoded_again(output: Any, loop: Any) -> None:
    text = loop.tokenizer.decode(output.response_ids)
    output.response_ids = loop.tokenizer.encode(text, add_special_tokens=False)[: loop.response_length]
    output.response_mask = [1] * len(output.response_ids)
    output.response_logprobs = [0.0] * len(output.response_ids)


MISTAKES: dict[str, tuple[str, Callable[[Any, Any], None]]] = {
    "tool_text_trained": ("RLS518", _tool_text_trained),
    "token_swapped": ("RLS306", _token_swapped),
    "mask_late": ("RLS518", _mask_late),
    "last_untrained": ("RLS518", _last_untrained),
    "log_probs_early": ("RLS305", _log_probs_early),
    "turn_left_out": ("RLS306", _turn_left_out),
}
"""Name of a mistake of verl's own loop -> the rule that names it, and what makes it."""
OWN = "own_tool_agent"
OWN_MISTAKES: dict[str, tuple[str, Callable[[Any, Any], None]]] = {
    "tool_text_trained": MISTAKES["tool_text_trained"],
    "encoded_again": ("RLS306", _encoded_again),
    "log_probs_early": MISTAKES["log_probs_early"],
}
"""The same of the loop `OWN`, which verl does not know."""


async def _runs(wrapped: Any, loop: Any, args: Any, kwargs: Any) -> Any:
    rollout = next(_sessions) // SESSIONS
    output = await wrapped(*args, **kwargs)
    for each in filter(None, os.environ.get(VARIABLE, "").split(",")):
        name, _, wrong = each.partition("@")
        if rollout == int(wrong):
            (MISTAKES | OWN_MISTAKES)[name][1](output, loop)
    return output


def _add_parser(module: Any) -> None:
    class AlwaysCalls(module.ToolParser):  # type: ignore[misc]  # verl is not typed
        """Finds a call of the tool whatever a turn says."""

        async def extract_tool_calls(self, responses_ids: Any, tools: Any = None) -> Any:
            text = self.tokenizer.decode(responses_ids)
            return text, [module.FunctionCall(name="digits", arguments='{"number": 3}')]

    module.ToolParser.register(ALWAYS_CALLS)(AlwaysCalls)


wrapt.when_imported(PARSERS)(_add_parser)
wrapt.when_imported(TOOL)(lambda module: wrapt.wrap_function_wrapper(module.ToolAgentLoop, "run", _runs))


def _add_own_loop(module: Any) -> None:
    class OwnToolAgent(module.ToolAgentLoop):  # type: ignore[misc]  # verl is not typed
        """verl's loop under another name."""

    OwnToolAgent.__module__, OwnToolAgent.__qualname__ = MODULE, "OwnToolAgent"
    globals()["OwnToolAgent"] = OwnToolAgent
    module.register(OWN)(OwnToolAgent)


wrapt.when_imported(TOOL)(_add_own_loop)


def _short_turn(wrapped: Any, loop: Any, args: Any, kwargs: Any) -> Any:
    """Ask for a turn of few tokens, so that more than one fits into a completion."""
    data, sampling = args
    return wrapped(data, {**sampling, "max_tokens": 12}, **kwargs)


wrapt.when_imported(TOOL)(
    lambda module: wrapt.wrap_function_wrapper(module.ToolAgentLoop, "_handle_generating_state", _short_turn)
)
