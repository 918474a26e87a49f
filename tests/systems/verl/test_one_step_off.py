"""verl.experimental.one_step_off_policy, trained for real: the next rollout is generated while one is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.record.events import Generated, Phase, TurnsJoined, WeightSync
from tests.systems.verl.asynchronous import check_beside, check_described, check_named
from tests.systems.verl.audited import Expected, audited
from tests.systems.verl.launch import ONE_STEP_OFF, Assets, grpo, one_step_off
from tests.systems.verl.separate_faults import MODULE, asking
from tests.systems.verl.separate_faults import ONE_STEP_OFF as FAULTS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.systems.audited import Audited

MADE = {"weights_of_a_rollout_all_one": 1, "sync_before_updates_left_out": 3, "engine_two_rollouts_behind": 5}
"""Fault -> rollout, counted from 0."""


@pytest.mark.thorough
def test_the_next_rollout_is_generated_while_one_is_trained(assets: Assets, tmp_path: Path) -> None:
    run = audited(grpo(assets) | one_step_off(), tmp_path, program=ONE_STEP_OFF)
    Expected(rollouts=4, updates=8, not_drawn="one_step_off").check(run)
    schedule = run.report.schedule
    assert schedule is not None
    assert (schedule.syncs, schedule.max_age) == ("first_and_before_updates", 1)
    labels = [dict(event.labels) for event in run.record("controller") if isinstance(event, Generated)]
    assert labels == [{step: 16} for step in range(4)], "each of the weights before those that train it"
    joined = [event for event in run.record("controller") if isinstance(event, TurnsJoined)]
    assert [(event.rollout, event.rows, event.left_out) for event in joined] == [(step, 16, 0) for step in range(4)]
    synced = [(event.label, event.policy_version) for event in run.record("rank0") if isinstance(event, WeightSync)]
    assert synced == [(0, 0), (1, 0), (2, 2), (3, 4), (4, 6)]
    called = [event.name for event in run.record("controller") if isinstance(event, Phase)]
    assert called[:4] == ["sync", "sync", "refresh", "policy_updates"]
    outcomes = {rule.code: rule for rule in run.report.rules}
    assert (outcomes["RLS402"].verdict, outcomes["RLS405"].verdict, outcomes["RLS312"].verdict) == ("PASS",) * 3


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    """One run with all faults, each at a rollout of its own."""
    folder = tmp_path_factory.mktemp("ahead")
    assets = Assets.write(folder, train_rows=8 * 8, validation_rows=8)
    overrides, environment = grpo(assets) | one_step_off(), asking(MADE)
    return audited(overrides, folder / "run", modules=[MODULE], environment=environment, program=ONE_STEP_OFF)


@pytest.mark.thorough
@pytest.mark.parametrize("name", MADE)
def test_fault_is_found_by_its_rule_within_one_rollout(name: str, faulty: Audited) -> None:
    check_named(faulty, "one_step_off_policy", name, FAULTS[name], MADE[name])


@pytest.mark.thorough
def test_nothing_is_found_beside_the_faults_and_training_goes_on(faulty: Audited) -> None:
    check_beside(faulty, FAULTS, MADE, rollouts=8)


def test_every_fault_is_made_and_described() -> None:
    check_described(FAULTS, MADE)
