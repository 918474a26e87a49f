"""verl.experimental.fully_async_policy, trained for real: one process generates without pause, another one trains from a queue.

Clean in several configurations, with its counts; then with faults of its queue, its limit, its stamps, its syncs and its correction,
each found by the rule that names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.record.events import Generated, Phase, QueueStep, TurnsJoined, WeightSync
from tests.systems.verl.asynchronous import check_beside, check_described, check_named
from tests.systems.verl.audited import Expected, audited
from tests.systems.verl.fully_async_faults import FAULTS, MODULE, asking
from tests.systems.verl.launch import FULLY_ASYNC, Assets, fully_async, grpo

if TYPE_CHECKING:
    from pathlib import Path

    from tests.systems.audited import Audited

WHY = "fully_async_policy"
BYPASS = "bypass_mode"
"""Why text is not tested against the policy's distribution."""
SLOW = {"+actor_rollout_ref.rollout.engine_kwargs.hf_cpu.seconds_per_token": 0.05}
"""So that a sync finds completions under way, and they go on with the new weights."""

DECOUPLED = {
    "algorithm.rollout_correction.bypass_mode": False,
    "algorithm.rollout_correction.rollout_is": "token",
}
"""Old log-probs are the trainer's, of the weights that a rollout began with, and samples are weighed."""

MADE = {
    "weights_all_one": 1,
    "prompt_twice_in_the_queue": 2,
    "prompt_lost_in_the_queue": 4,
    "stamped_with_a_counter": 6,
    "saved_weights_not_put_into_place": 8,
    "sync_left_out": 9,
    "engine_keeps_old_weights": 13,
    "generation_runs_ahead": 16,
    "fetch_trained_again": 19,
    "engine_at_another_temperature": 21,
}
"""Fault -> rollout, counted from 0."""
ROLLOUTS = 23


def run_of(assets: Assets, folder: Path, overrides: dict[str, Any], **more: Any) -> Audited:
    return audited(grpo(assets) | fully_async() | overrides, folder, program=FULLY_ASYNC, **more)


def outcomes_of(run: Audited, *codes: str) -> set[str]:
    return {rule.verdict for rule in run.report.rules if rule.code in codes}


@pytest.mark.thorough
def test_training_from_the_queue_with_the_engines_log_probs(assets: Assets, tmp_path: Path) -> None:
    run = run_of(assets, tmp_path, SLOW)
    Expected(rollouts=2, updates=4, refreshes=0, lags=None, not_drawn=BYPASS).check(run)
    schedule = run.report.schedule
    assert schedule is not None
    assert (schedule.parts_per_rollout, schedule.updates_per_rollout, schedule.max_age) == (2, 2, 1)
    generated = [event for event in run.record("controller") if isinstance(event, Generated)]
    assert [event.parts for event in generated] == [(8, 8)] * 2
    assert all(event.queue is not None for event in generated)
    joined = [event for event in run.record("controller") if isinstance(event, TurnsJoined)]
    assert [(event.rollout, event.rows, event.left_out) for event in joined] == [(0, 16, 0), (1, 16, 0)]
    steps = [event for event in run.record("rollouter0") if isinstance(event, QueueStep)]
    assert len({event.prompt for event in steps}) == 16
    syncs = [event.label for event in run.record("rank0") if isinstance(event, WeightSync)]
    assert syncs == [0, 1, 2]
    called = [event.name for event in run.record("controller") if isinstance(event, Phase)]
    assert called == ["sync", *["policy_updates", "policy_updates", "sync"] * 2]
    assert outcomes_of(run, "RLS520", "RLS402", "RLS405") == {"PASS"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("overrides", "expected", "age"),
    [
        (DECOUPLED | SLOW, Expected(rollouts=2, updates=4, refreshes=4, not_drawn=WHY), 1),
        (
            {"async_training.trigger_parameter_sync_step": 1, "async_training.require_batches": 2}
            | {"async_training.staleness_threshold": 0},
            Expected(rollouts=2, updates=4, refreshes=0, lags=None, not_drawn=BYPASS),
            0,
        ),
        # 20 prompts: the last four fill no rollout, and are trained all the same. Two passes over each fetch.
        (
            {"rollout.total_rollout_steps": 20, "actor_rollout_ref.actor.ppo_epochs": 2}
            | {"async_training.staleness_threshold": 1},
            Expected(rollouts=2, updates=8, refreshes=0, lags=None, not_drawn=BYPASS),
            2,
        ),
    ],
    ids=["decoupled", "on-policy", "left-over"],
)
def test_other_configurations(
    overrides: dict[str, Any], expected: Expected, age: int, assets: Assets, tmp_path: Path
) -> None:
    run = run_of(assets, tmp_path, overrides)
    expected.check(run)
    assert run.report.schedule is not None
    assert run.report.schedule.max_age == age
    assert outcomes_of(run, "RLS520", "RLS402", "RLS405") == {"PASS"}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    """One run with all faults, each at a rollout of its own."""
    folder = tmp_path_factory.mktemp("fully_async")
    assets = Assets.write(folder, train_rows=ROLLOUTS * 8, validation_rows=8)
    overrides = DECOUPLED | SLOW | {"rollout.total_rollout_steps": ROLLOUTS * 8}
    return run_of(assets, folder / "run", overrides, modules=[MODULE], environment=asking(MADE))


@pytest.mark.thorough
@pytest.mark.parametrize("name", MADE)
def test_fault_is_found_by_its_rule_within_one_rollout(name: str, faulty: Audited) -> None:
    check_named(faulty, "fully_async_policy", name, FAULTS[name], MADE[name])


@pytest.mark.thorough
def test_nothing_is_found_beside_the_faults_and_training_goes_on(faulty: Audited) -> None:
    check_beside(faulty, FAULTS, MADE, rollouts=ROLLOUTS)


def test_every_fault_is_made_and_described() -> None:
    check_described(FAULTS, MADE)
