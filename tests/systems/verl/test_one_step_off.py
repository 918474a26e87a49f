"""verl.experimental.one_step_off_policy, trained for real: the next rollout is generated while one is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.record.events import Generated, Phase, WeightSync
from tests.systems.verl.audited import Expected, audited
from tests.systems.verl.launch import ONE_STEP_OFF, grpo, one_step_off

if TYPE_CHECKING:
    from pathlib import Path

    from tests.systems.verl.launch import Assets


@pytest.mark.thorough
def test_the_next_rollout_is_generated_while_one_is_trained(assets: Assets, tmp_path: Path) -> None:
    run = audited(grpo(assets) | one_step_off(), tmp_path, program=ONE_STEP_OFF)
    Expected(rollouts=4, updates=8).check(run)
    schedule = run.report.schedule
    assert schedule is not None
    assert (schedule.syncs, schedule.max_age) == ("first_and_before_updates", 1)
    labels = [dict(event.labels) for event in run.record("controller") if isinstance(event, Generated)]
    assert labels == [{step: 16} for step in range(4)], "each of the weights before those that train it"
    synced = [(event.label, event.policy_version) for event in run.record("rank0") if isinstance(event, WeightSync)]
    assert synced == [(0, 0), (1, 0), (2, 2), (3, 4), (4, 6)]
    called = [event.name for event in run.record("controller") if isinstance(event, Phase)]
    assert called[:4] == ["sync", "sync", "refresh", "policy_updates"]
    outcomes = {rule.code: rule for rule in run.report.rules}
    assert (outcomes["RLS402"].verdict, outcomes["RLS405"].verdict, outcomes["RLS312"].verdict) == ("PASS",) * 3
