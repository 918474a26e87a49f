"""Agent loops that do not give one sample for each session. verl imports this module in every process.

`SEVERAL` gives one, two or no samples for a session, or raises; sessions of verl's own loop raise where `FAILING` is in the
environment. Which, follows the tokens of the prompt and the order of sessions, so every run has each of these cases.
"""

from __future__ import annotations

import copy
import itertools
import os
from typing import Any

import wrapt

MODULE = __name__
SEVERAL = "several_outputs"
FAILING = "RLSTEP_TEST_FAILING_SESSIONS"
LOOPS = "verl.experimental.agent_loop.single_turn_agent_loop"
REGISTRY = "verl.experimental.agent_loop.agent_loop"
EVERY = 5
"""Of so many sessions one raises, one gives nothing, and one gives two samples."""

_sessions = itertools.count()


async def several(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Run verl's loop, and give its sample twice, or once, or not at all."""
    output = await wrapped(*args, **kwargs)
    case = next(_sessions) % EVERY
    if case == 1:
        raise RuntimeError("a tool failed on purpose")
    if case == 2:
        return []
    return [output, copy.deepcopy(output)] if case == 3 else [output]


async def failing(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Run verl's loop, and raise now and then."""
    output = await wrapped(*args, **kwargs)
    if next(_sessions) % EVERY == 1:
        raise RuntimeError("a tool failed on purpose")
    return output


def _several_outputs(module: Any) -> None:
    class SeveralOutputs(module.SingleTurnAgentLoop):  # type: ignore[misc]  # verl is not typed
        """verl's loop under another name."""

    SeveralOutputs.__module__, SeveralOutputs.__qualname__ = MODULE, "SeveralOutputs"
    wrapt.wrap_function_wrapper(SeveralOutputs, "run", several)
    globals()["SeveralOutputs"] = SeveralOutputs
    module.register(SEVERAL)(SeveralOutputs)
    if FAILING in os.environ:
        wrapt.wrap_function_wrapper(module.SingleTurnAgentLoop, "run", failing)


wrapt.when_imported(LOOPS)(_several_outputs)
