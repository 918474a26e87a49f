"""Healthy runs whose counts the plan alone does not know: the data decide them, an agent loop does, or nothing is trained at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from rlstep_hooks.record.events import Generated
from tests.detection.outcomes import Clean, note
from tests.systems.verl.agent_loops import FAILING, MODULE, SEVERAL
from tests.systems.verl.audited import alarms, audited, problems
from tests.systems.verl.launch import Assets, grpo

if TYPE_CHECKING:
    from pathlib import Path

    from tests.systems.audited import Audited


def healthy(run: Audited) -> list[Generated]:
    """A clean run of three rollouts; its rollouts of training."""
    note(Clean(framework="verl", alarms=tuple(finding.code for finding in alarms(run.report))))
    assert run.outcome.status == 0, run.outcome.tail
    assert problems(run.report) == []
    assert run.report.verdict == "PASS"
    assert run.live is not None
    assert run.live.verdict == "PASS", "judged while it ran as it is from its records"
    return [event for event in run.record("controller") if isinstance(event, Generated) and event.purpose == "training"]


def outcome(run: Audited, code: str) -> str:
    """The verdict of one rule."""
    return next(found.verdict for found in run.report.rules if found.code == code)


THREE = {"trainer.total_training_steps": 3}


@pytest.mark.thorough
def test_an_agent_loop_that_gives_several_samples_for_a_session_or_none(assets: Assets, tmp_path: Path) -> None:
    overrides = grpo(assets) | THREE | {"actor_rollout_ref.rollout.agent.default_agent_loop": SEVERAL}
    run = audited(overrides, tmp_path, modules=[MODULE])
    rollouts = healthy(run)
    assert {rollout.samples for rollout in rollouts} != {16}, "the loop decided"
    assert all(rollout.samples == rollout.due for rollout in rollouts)
    # 8 samples to an update: what was generated, filled up.
    assert run.report.counts.updates == sum((rollout.samples + rollout.added) // 8 for rollout in rollouts)
    assert outcome(run, "RLS502") == outcome(run, "RLS207") == "PASS", "each sample is followed all the same"
    mask = next(found for found in run.report.rules if found.code == "RLS518")
    twice = f"a row of the agent loop {SEVERAL} begins with a prompt that no turn was asked for"
    assert (mask.verdict, mask.note) == ("PASS", f"rows of some sessions were not compared: {twice}")
    assert run.report.schedule is not None
    assert run.report.schedule.updates_bound == "data_dependent"


@pytest.mark.thorough
def test_sessions_that_fail_and_prompts_with_a_number_of_sessions_of_their_own(assets: Assets, tmp_path: Path) -> None:
    rows = pd.read_parquet(assets.train)
    rows["__rollout_n__"] = [1 + index % 4 for index in range(len(rows))]
    rows.to_parquet(tmp_path / "rows.parquet")
    overrides = grpo(assets) | THREE | {"data.train_files": tmp_path / "rows.parquet"}
    run = audited(overrides, tmp_path / "run", modules=[MODULE], environment={FAILING: "1"})
    rollouts = healthy(run)
    assert {rollout.samples for rollout in rollouts} != {16}, "the data decided"
    assert all(rollout.samples == rollout.due for rollout in rollouts)
    assert run.report.counts.updates == sum((rollout.samples + rollout.added) // 8 for rollout in rollouts)
    assert outcome(run, "RLS502") == outcome(run, "RLS207") == "PASS"


@pytest.mark.thorough
def test_greedy_baselines_are_no_samples(assets: Assets, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"algorithm.adv_estimator": "remax", "trainer.use_v1": False}
    rollouts = healthy(audited(grpo(assets) | THREE | settings, tmp_path))
    assert [(rollout.samples, rollout.prompts) for rollout in rollouts] == [(16, 8)] * 3


@pytest.mark.thorough
@pytest.mark.parametrize("v1", [True, False])
def test_an_evaluation_trains_nothing(assets: Assets, tmp_path: Path, v1: bool) -> None:
    settings = {"trainer.val_only": True, "trainer.val_before_train": True, "trainer.use_v1": v1}
    run = audited(grpo(assets) | settings, tmp_path)
    assert healthy(run) == []
    counts = run.report.counts
    assert (counts.evaluation_rollouts, counts.rollouts, counts.updates, counts.weight_syncs) == (1, 0, 0, 1)
    assert run.report.schedule is not None
    assert (run.report.schedule.rollouts, run.report.schedule.updates) == (0, 0)
