"""The user's tools in verl's agent loop, called once each, as the loop does (experimental/agent_loop/tool_agent_loop.py, 0.9.1)."""

from __future__ import annotations

import asyncio
from typing import Any

import wrapt

from rlstep_hooks.rehearse.tools import answered, made_arguments, raised

_LONGEST = 20
"""Seconds that a tool has for its answer."""

_probed = False


def watch_tools(module: Any) -> None:
    """`verl.experimental.agent_loop.tool_agent_loop`: its `run` makes one sample, with the tools of the launch."""

    async def around(wrapped: Any, loop: Any, args: Any, kwargs: Any) -> Any:
        global _probed
        if not _probed:  # the one worker of the small run makes all samples
            _probed = True
            for tool in loop.tools.values():
                await _probe(tool, _data(module, kwargs))
        return await wrapped(*args, **kwargs)

    wrapt.wrap_function_wrapper(module.ToolAgentLoop, "run", around)


def _data(module: Any, row: dict[str, Any]) -> Any:
    """What the loop keeps of a sample and gives to its tools, at the sample's beginning."""
    return module.AgentData(
        messages=list(row["raw_prompt"]),
        image_data=[],
        video_data=[],
        audio_data=None,
        mm_processor_kwargs=None,
        metrics={},
        request_id="rehearsal",
        tools_kwargs=row.get("tools_kwargs") or {},
    )


async def _probe(tool: Any, data: Any) -> None:
    schema = tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True)["function"]
    arguments = made_arguments(schema.get("parameters") or {})
    try:
        answer = await asyncio.wait_for(_called(tool, arguments, data), _LONGEST)
    except Exception as error:  # noqa: BLE001 - of a call that verl did not make
        raised(tool.name, arguments, error)
    else:
        answered(tool.name, arguments, answer)


async def _called(tool: Any, arguments: dict[str, Any], data: Any) -> Any:
    """The text that the model would get: of a tool with a state for each sample, or of a function (`ToolAgentLoop._call_tool`)."""
    if not hasattr(tool, "execute"):
        return await tool.call(dict(arguments))
    given = data.tools_kwargs.get(tool.name) or {}
    instance, _ = await tool.create(create_kwargs=given.get("create_kwargs") or {})
    try:
        response, _, _ = await tool.execute(instance, dict(arguments), agent_data=data)
    finally:
        await tool.release(instance)
    return response.text
