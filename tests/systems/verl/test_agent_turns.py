"""The rows of verl's tool agent against the turns that were sampled for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.record.events import TurnsJoined
from tests.systems.verl import agent_turns
from tests.systems.verl.audited import alarms, audited
from tests.systems.verl.launch import Assets, several_turns

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("v1", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_a_tool_agent_is_silent_until_its_rows_are_wrong(assets: Assets, tmp_path: Path, v1: bool) -> None:
    mistakes = {name: place for place, name in enumerate(agent_turns.MISTAKES, 2)}
    asked = ",".join(f"{name}@{place}" for name, place in mistakes.items())
    run = audited(
        several_turns(assets) | {"trainer.use_v1": v1},
        tmp_path,
        modules=[agent_turns.MODULE],
        environment={agent_turns.VARIABLE: asked},
    )
    assert run.outcome.status == 0, run.outcome.tail
    joined = {event.rollout: event for event in run.record("controller") if isinstance(event, TurnsJoined)}
    assert len(joined) == 9
    for event in joined.values():
        assert (event.rows, event.turns, event.left_out) == (8, 16, 0)
        assert event.written > 0, "each session has the text of the tool in it"
        assert event.log_probs_compared == (0 if event.tokens_moved else 8), (
            "the rows whose tokens stand where they were drawn"
        )
    found = {(each.code, each.where.rollout) for each in alarms(run.report)}
    # What engine and trainer disagree about in those rollouts is what the mistakes bring with them.
    apart = {place for code, place in found if code == "RLS403"}
    assert apart <= set(mistakes.values())
    named = {(code, place) for code, place in found if code != "RLS403"}
    assert named == {(agent_turns.MISTAKES[name][0], place) for name, place in mistakes.items()}


@pytest.mark.thorough
def test_a_loop_of_ones_own_is_silent_until_what_it_trains_was_not_sampled(assets: Assets, tmp_path: Path) -> None:
    mistakes = {name: place for place, name in enumerate(agent_turns.OWN_MISTAKES, 2)}
    run = audited(
        several_turns(assets)
        | {"actor_rollout_ref.rollout.agent.default_agent_loop": agent_turns.OWN, "trainer.total_training_steps": 6},
        tmp_path,
        modules=[agent_turns.MODULE],
        environment={agent_turns.VARIABLE: ",".join(f"{name}@{place}" for name, place in mistakes.items())},
    )
    assert run.outcome.status == 0, run.outcome.tail
    joined = [event for event in run.record("controller") if isinstance(event, TurnsJoined)]
    assert [(event.rows, event.turns, event.left_out) for event in joined] == [(8, 16, 0)] * 6
    found = {(each.code, each.where.rollout) for each in alarms(run.report) if each.code != "RLS403"}
    assert found == {(agent_turns.OWN_MISTAKES[name][0], place) for name, place in mistakes.items()}
    rows = {each.where.rollout: each.row for each in alarms(run.report) if each.code == "RLS518"}
    row = rows[mistakes["tool_text_trained"]]
    assert row is not None
    assert [piece.words for piece in row.pieces if piece.wrong] == ["tool or template, trained"]
