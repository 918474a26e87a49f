"""The turns of verl's agent loops against the rows that they give, in the processes where the loops run.

Each call of the engines' client within one session is a turn: its prompt, the tokens that came back, and their log-probs. All of it
stands in plain lists on the CPU.
"""

from __future__ import annotations

import os
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.observe.processes import run_of_ray
from rlstep_hooks.observe.token_origins import Request, Row, RowRule, join
from rlstep_hooks.systems.verl.launch import SHIPPED_AGENT_LOOPS
from rlstep_hooks.systems.verl.observe.agent_records import Session, file_of
from rlstep_hooks.systems.verl.observe.process import folder

if TYPE_CHECKING:
    from rlstep_hooks.observe.patches import Patches

_turns: ContextVar[list[Request] | None] = ContextVar("rlstep_turns", default=None)
"""The turns of the session that this task runs; None outside of a session that is compared."""


def place_hooks(patches: Patches, worker: Any) -> None:
    """Put the hooks on the class of the processes that run agent loops.

    Args:
        patches: What takes them off again.
        worker: `AgentLoopWorker`, the parent of V1's.
    """
    # Verified in 0.9.1 V1: one call is one session (agent_loop.py:661), whose row goes to the reward and, as it is, to the queue
    # (agent_loop_tq.py:160). The child class is pickled whole and cannot carry hooks; both methods are its parent's.
    patches.wrap(worker, "_run_agent_loop", _session)
    patches.wrap(worker, "_compute_score", _row)


def place_client_hook(patches: Patches, client: Any) -> None:
    """Put the hook on the client of the engines. Verified in 0.9.1: each turn is one call of it (llm_server.py:99)."""
    patches.wrap(client, "generate", _turn)


async def _session(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    token = _turns.set(_begun(args, kwargs))
    try:
        return await wrapped(*args, **kwargs)
    finally:
        _turns.reset(token)


def _begun(args: Any, kwargs: Any) -> list[Request] | None:
    """A list for the turns of a session; None where it is not compared."""
    from rlstep_hooks.session import ray_sink

    try:
        trajectory = kwargs["trajectory"] if "trajectory" in kwargs else args[1]
        shipped = kwargs.get("agent_name") in SHIPPED_AGENT_LOOPS
        compared = shipped and "session_id" in kwargs and not trajectory["validate"] and not ray_sink.asked()
    except Exception:  # noqa: BLE001 - nothing here may reach verl
        return None
    return [] if compared else None


async def _turn(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    turns = _turns.get()
    if turns is None:
        return await wrapped(*args, **kwargs)
    asked = kwargs.get("prompt_ids")
    asked = None if asked is None else list(asked)
    result = await wrapped(*args, **kwargs)
    try:
        drawn = result.log_probs
        turns.append(Request(asked, list(result.token_ids), list(drawn) if drawn else None))  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - nothing here may reach verl; a session whose turns are not known is not compared
        _turns.set(None)
    return result


async def _row(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    turns = _turns.get()
    if turns:
        try:
            _compare(worker, turns, args[0] if args else kwargs["outputs"], kwargs["kwargs"])
        except Exception:  # noqa: BLE001 - nothing here may reach verl; a session without a line is not compared
            _turns.set(None)
    return await wrapped(*args, **kwargs)


def _compare(worker: Any, turns: list[Request], outputs: Any, sample: dict[str, Any]) -> None:
    if len(outputs) != 1:
        return
    output, tokenizer = outputs[0], worker.tokenizer
    key = f"{sample['uid']}_{sample['session_id']}"
    drawn = output.response_logprobs
    row = Row(
        prompt=list(output.prompt_ids),
        completion=list(output.response_ids),
        trained=[int(one) for one in output.response_mask],
        log_probs=list(drawn) if drawn else None,
        name=f"session {sample['session_id']} of prompt {sample['uid']}",
    )
    rule = RowRule(
        decode=lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False)),
        longest=int(worker.rollout_config.response_length),
        closers=frozenset(),
        masks_truncated=False,
        exact=True,
    )
    found = join([[turn] for turn in turns], [row], rule)
    with file_of(folder(), run_of_ray(), os.getpid()).open("ab") as file:
        file.write(msgspec.json.encode(Session(key, found)) + b"\n")
