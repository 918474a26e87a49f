"""The rows of verl's tool agent against the turns that were sampled for them, in V1."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlstep_hooks.record.events import TurnsJoined
from tests.systems.verl import agent_turns
from tests.systems.verl.audited import audited
from tests.systems.verl.launch import Assets, grpo

if TYPE_CHECKING:
    from typing import Any

TOOL_FILE = Path(__file__).with_name("digits_tool.py")


def several_turns(assets: Assets) -> dict[str, Any]:
    """Overrides of a run whose sessions have two turns with the output of a tool between them."""
    rollout = "actor_rollout_ref.rollout"
    return grpo(assets) | {
        f"{rollout}.agent.default_agent_loop": "tool_agent",
        f"{rollout}.multi_turn.enable": True,
        f"{rollout}.multi_turn.max_assistant_turns": 2,
        f"{rollout}.multi_turn.function_tool_path": TOOL_FILE,
        f"{rollout}.multi_turn.format": agent_turns.PARSER,
        f"{rollout}.calculate_log_probs": True,
        "data.train_batch_size": 4,
        "data.max_prompt_length": 512,
        "data.max_response_length": 160,
    }


def test_a_tool_agent_is_silent_until_its_rows_are_wrong(assets: Assets, tmp_path: Path) -> None:
    mistakes = {name: place for place, name in enumerate(agent_turns.MISTAKES, 2)}
    asked = ",".join(f"{name}@{place}" for name, place in mistakes.items())
    run = audited(
        several_turns(assets),
        tmp_path,
        modules=[agent_turns.MODULE],
        environment={agent_turns.VARIABLE: asked},
    )
    joined = {event.rollout: event for event in run.record("controller") if isinstance(event, TurnsJoined)}
    assert len(joined) == 9
    assert all(event.rows == 8 and event.turns == 16 and event.written > 0 for event in joined.values())
    found = {(finding.code, finding.where.rollout) for finding in run.report.findings if finding.severity == "error"}
    assert found == {(agent_turns.MISTAKES[name][0], place) for name, place in mistakes.items()}
