"""The answers of an agent of several turns against the turns that the engine sampled for them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlstep_hooks.record.events import TurnsJoined
from tests.systems.openrlhf.audited import alarms, audited
from tests.systems.openrlhf.launch import ENGINE_LOG_PROBS, Assets, reinforce

if TYPE_CHECKING:
    from typing import Any

AGENT = Path(__file__).with_name("two_turns.py")
VARIABLE = "RLSTEP_TEST_TURNS"
MISTAKES = {
    "feedback_trained": "RLS518",
    "token_swapped": "RLS306",
    "spans_late": "RLS518",
    "log_probs_early": "RLS305",
}


def test_an_agent_is_silent_until_its_answers_are_wrong(assets: Assets, extensions: Path, tmp_path: Path) -> None:
    places = {name: place for place, name in enumerate(MISTAKES, 2)}
    agent: dict[str, Any] = {"train.agent_func_path": AGENT, "reward.remote_url": False, "data.max_len": 128}
    run = audited(
        reinforce(assets, tmp_path, rows=8 * 7) | ENGINE_LOG_PROBS | agent,
        tmp_path,
        extensions=extensions,
        environment={VARIABLE: ",".join(f"{name}@{place}" for name, place in places.items())},
    )
    assert run.outcome.status == 0, run.outcome.tail
    joined = {event.rollout: event for event in run.record("controller") if isinstance(event, TurnsJoined)}
    assert len(joined) == 7
    for event in joined.values():
        assert (event.rows, event.turns, event.left_out) == (16, 32, 0)
        assert event.written > 0, "each answer has the words of the environment in it"
    found = {(each.code, each.where.rollout) for each in alarms(run.report)}
    # What engine and trainer disagree about in those rollouts is what the mistakes bring with them.
    assert {place for code, place in found if code == "RLS403"} <= set(places.values())
    named = {(code, place) for code, place in found if code != "RLS403"}
    assert named == {(MISTAKES[name], place) for name, place in places.items()}
