"""The turns of verl's agent loops against the rows that they give, in the processes where the loops run.

Each call of the engines' client within one session is a turn: its prompt, the tokens that came back, and their log-probs. All of it
stands in plain lists on the CPU. What a comparison finds goes to a file that the controller reads
(`rlstep_hooks.observe.turn_records`).
"""

from __future__ import annotations

import itertools
import os
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.observe.kept_turns import KeptTurns
from rlstep_hooks.observe.processes import run_of_ray
from rlstep_hooks.observe.token_origins import compare_row, compare_rows
from rlstep_hooks.observe.turn_records import Session, write
from rlstep_hooks.observe.turn_rows import Joined, Request, Row, RowRule
from rlstep_hooks.record.describe import describe
from rlstep_hooks.systems.verl.launch import SHIPPED_AGENT_LOOPS
from rlstep_hooks.systems.verl.observe import asked_sampling
from rlstep_hooks.systems.verl.observe.encoded_prompts import EncodedPrompts
from rlstep_hooks.systems.verl.observe.process import folder
from rlstep_hooks.systems.verl.plan import is_fully_async

if TYPE_CHECKING:
    from rlstep_hooks.observe.patches import Patches

_TAKE_TOKENS_OUT = ("deepseek", "gemma4", "glm")
"""Beginnings of the types of models behind whose turns verl takes sampled tokens out of the row, as their chat templates want it
(utils/tokenizer/continuous_token.py 0.9.1:640, 809 and 1031)."""


class _Open(msgspec.Struct):
    """A session that is being generated."""

    name: str
    """What a finding calls it."""
    key: str
    """What the controller knows it by; see `Session`."""
    loop: str
    """Name of the agent loop."""
    turns: KeptTurns
    why_not: str
    """Why its rows are not compared; empty where they are."""
    prompt: list[Any] | None = None
    """The messages of its row, where its prompt is encoded again."""


_open: ContextVar[_Open | None] = ContextVar("rlstep_session", default=None)
"""The session that this task runs; None outside of a session of the training."""

_encoded = EncodedPrompts()
"""Encodes prompts again in this process."""

_numbers = itertools.count()
"""Numbers of V0's sessions in this process."""


def place_hooks(patches: Patches, worker: Any) -> None:
    """Put the hooks on the class of the processes that run agent loops.

    Args:
        patches: What takes them off again.
        worker: `AgentLoopWorker`, the parent of V1's.
    """
    # Verified in 0.9.1: one call is one session (agent_loop.py:661). Its row goes to the reward and, as it is, to the queue of V1
    # (v1/agent_loop_tq.py:160), or in V0 to the samples that come back (agent_loop.py:822). V1's child class is pickled whole and
    # cannot carry hooks; both methods are its parent's.
    patches.wrap(worker, "_run_agent_loop", _session)
    patches.wrap(worker, "_compute_score", _row)


def place_client_hook(patches: Patches, client: Any) -> None:
    """Put the hook on the client of the engines. Verified in 0.9.1: each turn is one call of it (llm_server.py:99), and each part of a
    turn that was interrupted (llm_server.py:281)."""
    patches.wrap(client, "generate", _turn)


async def _session(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    _sampling_of(worker, args, kwargs)
    token = _open.set(_begun(worker, args, kwargs))
    try:
        return await wrapped(*args, **kwargs)
    finally:
        _open.reset(token)


def _sampling_of(worker: Any, args: Any, kwargs: Any) -> None:
    """Remember for this task how its session should sample."""
    with suppress(Exception):  # nothing here may reach verl; this session is not compared
        trajectory = kwargs["trajectory"] if "trajectory" in kwargs else args[1]
        asked_sampling.session_begins(worker, str(kwargs.get("agent_name")), validates=bool(trajectory["validate"]))


def _begun(worker: Any, args: Any, kwargs: Any) -> _Open | None:
    """A session that begins; None where it is a validation."""
    try:
        trajectory = kwargs["trajectory"] if "trajectory" in kwargs else args[1]
        if trajectory["validate"]:
            return None
        if is_fully_async(worker.config):
            # The controller knows its prompt (fully_async_rollouter.py:995).
            name, key = f"a session of prompt {kwargs['uid']}", str(kwargs["uid"])
        elif "session_id" in kwargs:
            prompt, number = kwargs["uid"], kwargs["session_id"]
            name, key = f"session {number} of prompt {prompt}", f"{prompt}_{number}"
        else:
            name, key = f"a session of row {trajectory['sample_index']}", f"{os.getpid()}_{next(_numbers)}"
        loop, why_not = str(kwargs.get("agent_name")), _why_not(worker)
        prompt = None if why_not else _encoded.begin(worker, loop, trajectory.get("step"), kwargs.get("raw_prompt"))
        return _Open(name, key, loop, KeptTurns(), why_not, prompt)
    except Exception:  # noqa: BLE001 - nothing here may reach verl; the controller misses the line of this session
        return None


def _why_not(worker: Any) -> str:
    """Why the rows of agent loops are not compared with their turns; empty where they are."""
    model = str(worker.hf_model_type)
    if worker.processor is not None:
        return "the policy has images, which count tokens otherwise"
    if model.startswith(_TAKE_TOKENS_OUT):
        return f"behind a turn of a model of type {model} verl takes sampled tokens out of the row"
    return ""


async def _turn(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
    with suppress(Exception):  # nothing here may reach verl; this turn is not compared
        asked_sampling.asks(kwargs["sampling_params"])
    session = _open.get()
    if session is None or session.why_not:
        return await wrapped(*args, **kwargs)
    asked: list[int] = []
    try:
        asked = list(kwargs["prompt_ids"])  # its own: the loop may write into it while the engine samples
    except Exception as error:  # noqa: BLE001 - nothing here may reach verl; the controller is told
        session.why_not = f"a hook failed: {describe(error)}"
    result = await wrapped(*args, **kwargs)
    try:
        drawn = result.log_probs
        session.turns.add(Request(asked, list(result.token_ids), list(drawn) if drawn else None))
    except Exception as error:  # noqa: BLE001 - nothing here may reach verl; the controller is told
        session.why_not = f"a hook failed: {describe(error)}"
    return result


async def _row(wrapped: Any, worker: Any, args: Any, kwargs: Any) -> Any:
    session = _open.get()
    if session is not None:
        try:
            _look(worker, session, args[0] if args else kwargs["outputs"])
        except Exception as error:  # noqa: BLE001 - nothing here may reach verl; the controller is told
            session.why_not = f"a hook failed: {describe(error)}"
    return await wrapped(*args, **kwargs)


def _look(worker: Any, session: _Open, outputs: Any) -> None:
    """Compare the rows of a session with its turns, and write down what was found."""
    found, why_not = Joined(), session.why_not
    if not why_not:
        try:
            found = _compare(worker, session, outputs)
            if found.rows < len(outputs):
                why_not = f"a row of the agent loop {session.loop} begins with a prompt that no turn was asked for"
            if not session.turns:
                why_not = f"the engines' client was not asked for any turn by the agent loop {session.loop}"
        except Exception as error:  # noqa: BLE001 - the line says it
            why_not = f"a hook failed: {describe(error)}"
    write(folder(), run_of_ray(), Session(session.key, found, why_not))


def _compare(worker: Any, session: _Open, outputs: Any) -> Joined:
    tokenizer, own = worker.tokenizer, not _is_shipped(session.loop)
    name, several = session.name, len(outputs) > 1
    names = [f"row {place} of {name}" if several else name for place in range(len(outputs))]
    rows = [_row_of(output, name) for output, name in zip(outputs, names, strict=True)]
    rule = RowRule(
        decode=lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False)),
        longest=int(worker.rollout_config.response_length),
        closers=frozenset(),
        masks_truncated=False,
        # A loop of one's own may cut turns, leave some untrained, or ask the engine for other things too.
        exact=not own,
    )
    turns = session.turns.all()
    found = compare_rows(rows, turns, rule) if own else compare_row(rows[0], turns, rule)
    if own or session.prompt is None:
        return found
    prompt = _encoded.tokens(worker, session.prompt)
    asked_sampling.prompts_with(worker.config.data, len(prompt))
    right = rows[0].prompt == prompt[-int(worker.rollout_config.prompt_length) :]
    return msgspec.structs.replace(found, prompts_encoded=1, prompts_wrong=int(not right))


def _is_shipped(loop: str) -> bool:
    """Whether an agent loop is one of verl's. `agent_loop_config_path` can give its name to another class (agent_loop.py:536)."""
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry

    target = str(_agent_loop_registry[loop]["_target_"])
    return loop in SHIPPED_AGENT_LOOPS and target.startswith("verl.experimental.agent_loop.")


def _row_of(output: Any, name: str) -> Row:
    drawn = output.response_logprobs
    return Row(
        prompt=list(output.prompt_ids),
        completion=list(output.response_ids),
        trained=[int(one) for one in output.response_mask],
        log_probs=list(drawn) if drawn else None,
        name=name,
    )
