"""V1's separate_async, trained for real: an engine in a process of its own, weights brought to it over a socket, rollouts ahead.

Clean, with its counts; then with faults of its queue, its bound, its syncs and its old log-probs, each found by the rule that names it.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.record.events import Generated, Phase, WeightSync
from tests.systems.verl.asynchronous import check_beside, check_described, check_named
from tests.systems.verl.audited import Expected, alarms, audited
from tests.systems.verl.faults import MODULE as PLAIN
from tests.systems.verl.faults import asking as asking_plainly
from tests.systems.verl.launch import Assets, grpo, separate
from tests.systems.verl.separate_faults import FAULTS, MODULE, asking

if TYPE_CHECKING:
    from pathlib import Path

    from tests.systems.audited import Audited

SLOW = {"+actor_rollout_ref.rollout.engine_kwargs.hf_cpu.seconds_per_token": 0.05}
"""So that a sync finds completions under way, and they go on with the new weights."""

MADE = {
    "bound_on_age_not_applied": 2,
    "weights_all_one": 3,
    "prompts_taken_again": 4,
    "prompts_lost_in_the_queue": 5,
    "saved_weights_not_put_into_place": 6,
    "sync_left_out": 7,
    "engine_keeps_old_weights": 12,
}
"""Fault -> rollout, counted from 0."""


@pytest.mark.thorough
def test_rollouts_ahead_of_training_in_parts(assets: Assets, tmp_path: Path) -> None:
    run = audited(grpo(assets) | separate() | SLOW, tmp_path)
    Expected(rollouts=4, updates=8, refreshes=8, not_drawn="separate_async").check(run)
    schedule = run.report.schedule
    assert schedule is not None
    assert (schedule.parts_per_rollout, schedule.updates_per_rollout, schedule.max_age) == (2, 2, 7)
    generated = [event for event in run.record("controller") if isinstance(event, Generated)]
    assert [event.parts for event in generated] == [(8, 8)] * 4
    assert min(label for label, _ in generated[1].labels) == 0, "the second rollout holds samples of the first weights"
    assert all(event.queue is not None and event.queue.waiting == 8 for event in generated), "as many as are ahead"
    # The engine of the trainer's own process gets the first weights too, and then leaves the work to the other.
    syncs = [event.label for event in run.record("rank0") if isinstance(event, WeightSync)]
    assert syncs == [0, 0, 1, 2, 3, 4]
    called = [event.name for event in run.record("controller") if isinstance(event, Phase)][2:7]
    assert called == ["refresh", "policy_updates", "refresh", "policy_updates", "sync"]
    outcomes = {rule.code: rule for rule in run.report.rules}
    assert (outcomes["RLS520"].verdict, outcomes["RLS402"].verdict, outcomes["RLS602"].verdict) == ("PASS",) * 3
    assert (outcomes["RLS312"].verdict, outcomes["RLS312"].checks) == ("PASS", 4 + 16), "rollouts and micro-batches"
    assert "of the tokens" in outcomes["RLS312"].note
    assert (outcomes["RLS813"].verdict, outcomes["RLS813"].checks) == ("PASS", 1), "in the second rollout"


@pytest.mark.thorough
def test_resumed_with_samples_in_the_queue(assets: Assets, tmp_path: Path) -> None:
    overrides = grpo(assets) | separate() | {"trainer.default_local_dir": tmp_path / "checkpoints"}
    first = audited(overrides | {"trainer.total_training_steps": 2, "trainer.save_freq": 2}, tmp_path / "run")
    Expected(rollouts=2, updates=4, refreshes=4, not_drawn="separate_async").check(first)
    on = {"trainer.resume_mode": "auto", "trainer.total_training_steps": 4}
    shutil.copytree(tmp_path / "run" / "log" / "checkpoints", tmp_path / "resumed" / "log" / "checkpoints")
    resumed = audited(overrides | on, tmp_path / "resumed")
    Expected(rollouts=2, updates=4, refreshes=4, not_drawn="separate_async").check(resumed)
    generated = [event for event in resumed.record("controller") if isinstance(event, Generated)]
    assert [min(label for label, _ in event.labels) for event in generated] == [1, 2], "samples from before the resume"
    outcomes = {rule.code: rule for rule in resumed.report.rules}
    assert (outcomes["RLS520"].verdict, outcomes["RLS702"].verdict) == ("PASS", "PASS")
    assert (outcomes["RLS402"].verdict, outcomes["RLS402"].missed) == ("PASS", 0)


@pytest.mark.thorough
def test_what_one_part_of_a_rollout_shows(tmp_path: Path) -> None:
    rejects = {
        "algorithm.rollout_correction.rollout_rs": "token_k1",
        "algorithm.rollout_correction.rollout_rs_threshold": "0.9_1.1",
    }
    # By their part: the first one of the second rollout, where slopes are measured, the second of the third, the first of the fifth,
    # the second of the sixth.
    faults = {"backward_of_a_layer_halved": 2, "rejection_left_out": 5, "rejection_of_other_samples": 8}
    made = asking_plainly(faults | {"importance_weights_left_out": 11})
    overrides = grpo(Assets.write(tmp_path, train_rows=48)) | separate() | rejects
    run = audited(overrides, tmp_path / "run", modules=[PLAIN], environment=made)
    assert run.outcome.status == 0, run.outcome.tail
    found = {(f.code, f.where.rollout, f.observed.rpartition(": ")[2]) for f in alarms(run.report)}
    slopes = {one for one in found if one[0] == "RLS813"}
    assert {one[1] for one in slopes} == {1}, found
    assert found - slopes == {
        ("RLS518", 2, "nothing is taken out of them"),
        ("RLS518", 4, "other tokens are taken out of them"),
        ("RLS312", 5, "other importance weights"),
    }


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    """One run with all faults, each at a rollout of its own."""
    folder = tmp_path_factory.mktemp("separate")
    assets = Assets.write(folder, train_rows=15 * 8, validation_rows=8)
    # Two rollouts ahead, of which one is too old to be trained.
    ahead: dict[str, Any] = {
        "trainer.v1.separate_async.num_warmup_batches": 2,
        "trainer.v1.sampler.max_off_policy_threshold": 2,
    }
    return audited(grpo(assets) | separate() | ahead, folder / "run", modules=[MODULE], environment=asking(MADE))


@pytest.mark.thorough
@pytest.mark.parametrize("name", MADE)
def test_fault_is_found_by_its_rule_within_one_rollout(name: str, faulty: Audited) -> None:
    check_named(faulty, "separate_async", name, FAULTS[name], MADE[name])


@pytest.mark.thorough
def test_nothing_is_found_beside_the_faults_and_training_goes_on(faulty: Audited) -> None:
    check_beside(faulty, FAULTS, MADE, rollouts=15)


def test_every_fault_is_made_and_described() -> None:
    check_described(FAULTS, MADE)
