"""The hooks on verl's agent loops contain their own errors: a session goes on, and its line says why its rows are not compared."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.systems.verl.observe import agent_turns

if TYPE_CHECKING:
    from rlstep_hooks.observe.turn_records import Session

BROKEN = "a hook failed: RuntimeError: broken on purpose"


class Client:
    """Stands in for the client of the engines."""

    async def generate(self, **_asked: Any) -> Any:
        return SimpleNamespace(token_ids=[5, 6], log_probs=None)


class Worker:
    """Stands in for the process that runs agent loops."""

    hf_model_type, processor, config = "qwen2", None, SimpleNamespace(data={})
    tokenizer = SimpleNamespace(decode=lambda ids, skip_special_tokens: str(ids))
    rollout_config = SimpleNamespace(response_length=4, prompt_length=4)

    async def _run_agent_loop(self, sampling: Any, trajectory: Any, **_row: Any) -> Any:
        given = await Client().generate(prompt_ids=[1], sampling_params=sampling)
        row = SimpleNamespace(
            prompt_ids=[1], response_ids=given.token_ids, response_mask=[1, 1], response_logprobs=given.log_probs
        )
        return given.token_ids, await self._compute_score([row])

    async def _compute_score(self, outputs: Any) -> int:
        return len(outputs)


@pytest.mark.parametrize(
    ("broken", "whys"),
    [
        ("", [""]),
        ("is_fully_async", []),  # a session that was not seen to begin has no line
        ("asked_sampling", [""]),  # how it samples is another matter than its rows
        ("Request", [BROKEN]),
        ("compare_row", [BROKEN]),
    ],
)
def test_a_session_goes_on(monkeypatch: pytest.MonkeyPatch, broken: str, whys: list[str]) -> None:
    def breaks(*_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError("broken on purpose")

    written: list[Session] = []
    monkeypatch.setattr(agent_turns, "write", lambda folder, run, line: written.append(line))
    monkeypatch.setattr(agent_turns, "run_of_ray", lambda: "r")
    monkeypatch.setattr(agent_turns, "folder", lambda: None)
    monkeypatch.setattr(agent_turns, "is_fully_async", lambda config: False)
    monkeypatch.setattr(agent_turns, "_is_shipped", lambda loop: True)
    monkeypatch.setattr(agent_turns, "_encoded", SimpleNamespace(begin=lambda *_: None))
    says = (lambda *_, **__: None) if broken != "asked_sampling" else breaks
    monkeypatch.setattr(agent_turns, "asked_sampling", SimpleNamespace(session_begins=says, asks=says))
    if broken not in ("", "asked_sampling"):
        monkeypatch.setattr(agent_turns, broken, breaks)

    patches = Patches()
    agent_turns.place_hooks(patches, Worker)
    agent_turns.place_client_hook(patches, Client)
    try:
        trajectory = {"validate": False, "step": 1}
        result = asyncio.run(Worker()._run_agent_loop({}, trajectory, agent_name="a", uid="u", session_id=0))
    finally:
        assert patches.restore() == []
    assert result == ([5, 6], 1)
    assert [line.why_not for line in written] == whys
    assert [line.found.rows for line in written] == [int(not why) for why in whys]
