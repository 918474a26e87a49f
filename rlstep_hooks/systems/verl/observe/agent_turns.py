"""The turns of verl's agent loops against the rows that they give, in the processes where the loops run.

Each call of the engines' client within one session is a turn: its prompt, the tokens that came back, and their log-probs. All of it
stands in plain lists on the CPU. What a comparison finds goes to a file that the controller reads
(`rlstep_hooks.observe.turn_records`).
"""

from __future__ import annotations

import itertools
import os
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.hooks import Call, Hooks
from rlstep_hooks.observe.kept_turns import KeptTurns
from rlstep_hooks.observe.processes import run_of_ray
from rlstep_hooks.observe.token_origins import compare_row, compare_rows
from rlstep_hooks.observe.turn_records import Session, write
from rlstep_hooks.observe.turn_rows import Joined, Request, Row, RowRule
from rlstep_hooks.systems.verl.launch import SHIPPED_AGENT_LOOPS
from rlstep_hooks.systems.verl.observe import asked_sampling
from rlstep_hooks.systems.verl.observe.encoded_prompts import EncodedPrompts
from rlstep_hooks.systems.verl.observe.process import folder
from rlstep_hooks.systems.verl.plan import is_fully_async

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.observe.patches import Patches

_TURNS, _SETTINGS = ("mask",), ("settings",)
"""What is not observed any more where a hook fails."""

_TAKE_TOKENS_OUT = ("deepseek", "gemma4", "glm")
"""Beginnings of the types of models behind whose turns verl takes sampled tokens out of the row, as their chat templates want it
(utils/tokenizer/continuous_token.py 0.9.1:640, 809 and 1031)."""


class _Lines:
    """Stands for a record in these processes: the line of a session says why its rows are not compared. Outside of a session, and where
    it fails to see how one samples, the controller misses what it would have been told."""

    def cannot(self, what: str, why: str) -> None:
        """Have the line of the session that this task runs say why its rows are not compared."""
        session = _open.get()
        if session is not None and what in _TURNS:
            session.why_not = why


_lines = _Lines()


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

    @property
    def recorder(self) -> _Lines:
        """Learns why its rows are not compared."""
        return _lines

    @contained(*_TURNS)
    def compare(self, worker: Any, outputs: Any) -> Joined:
        """Compare the rows of this session with its turns."""
        tokenizer, own = worker.tokenizer, not _is_shipped(self.loop)
        name, several = self.name, len(outputs) > 1
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
        turns = self.turns.all()
        found = compare_rows(rows, turns, rule) if own else compare_row(rows[0], turns, rule)
        if own or self.prompt is None:
            return found
        prompt = _encoded.tokens(worker, self.prompt)
        asked_sampling.prompts_with(worker.config.data, len(prompt))
        right = rows[0].prompt == prompt[-int(worker.rollout_config.prompt_length) :]
        return msgspec.structs.replace(found, prompts_encoded=1, prompts_wrong=int(not right))


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
    wrap = Hooks(_lines, patches).wrap
    wrap(worker, "_run_agent_loop", around=_session, topics=_TURNS)
    wrap(worker, "_run_agent_loop", before=_sampling_of, topics=_SETTINGS)
    wrap(worker, "_compute_score", before=_row, topics=_TURNS)


def place_client_hook(patches: Patches, client: Any) -> None:
    """Put the hook on the client of the engines. Verified in 0.9.1: each turn is one call of it (llm_server.py:99), and each part of a
    turn that was interrupted (llm_server.py:281)."""
    wrap = Hooks(_lines, patches).wrap
    wrap(client, "generate", around=_turn, topics=_TURNS)
    wrap(client, "generate", before=_asks, topics=_SETTINGS)


def _session(call: Call) -> Iterator[None]:
    token = _open.set(_begun(call.owner, call.argument("trajectory", 1), call.kwargs))
    try:
        yield
    finally:
        _open.reset(token)


def _sampling_of(call: Call) -> None:
    """Remember for this task how its session should sample."""
    validates = bool(call.argument("trajectory", 1)["validate"])
    asked_sampling.session_begins(call.owner, str(call.kwargs.get("agent_name")), validates=validates)


def _begun(worker: Any, trajectory: Any, kwargs: Any) -> _Open | None:
    """A session that begins; None where it is a validation."""
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
    messages = None if why_not else _encoded.begin(worker, loop, trajectory.get("step"), kwargs.get("raw_prompt"))
    return _Open(name, key, loop, KeptTurns(), why_not, messages)


def _why_not(worker: Any) -> str:
    """Why the rows of agent loops are not compared with their turns; empty where they are."""
    model = str(worker.hf_model_type)
    if worker.processor is not None:
        return "the policy has images, which count tokens otherwise"
    if model.startswith(_TAKE_TOKENS_OUT):
        return f"behind a turn of a model of type {model} verl takes sampled tokens out of the row"
    return ""


def _asks(call: Call) -> None:
    """See what the engine is asked to sample with."""
    asked_sampling.asks(call.kwargs["sampling_params"])


def _turn(call: Call) -> Iterator[None]:
    session = _open.get()
    if session is None or session.why_not:
        yield
        return
    asked = list(call.kwargs["prompt_ids"])  # its own: the loop may write into it while the engine samples
    yield
    drawn = call.result.log_probs
    session.turns.add(Request(asked, list(call.result.token_ids), list(drawn) if drawn else None))


def _row(call: Call) -> None:
    """Compare the rows of a session with its turns, and write down what was found."""
    session = _open.get()
    if session is None:
        return
    outputs = call.argument("outputs", 0)
    found = None if session.why_not else session.compare(call.owner, outputs)
    why_not = session.why_not
    if found is not None:
        if found.rows < len(outputs):
            why_not = f"a row of the agent loop {session.loop} begins with a prompt that no turn was asked for"
        if not session.turns:
            why_not = f"the engines' client was not asked for any turn by the agent loop {session.loop}"
    write(folder(), run_of_ray(), Session(session.key, found or Joined(), why_not))


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
