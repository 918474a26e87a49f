"""SimpleRL-Zoo: the flags of its script, the command that the script runs, and what its code does otherwise than configured."""

from __future__ import annotations

import pytest

from rlstep_hooks.launch.text import LaunchError, SettingError
from rlstep_hooks.planning.refusal import PlanError
from tests.golden.reading import planned, read

WRAPPER = (
    "bash train_grpo_math_tune_ray.sh --model_name Qwen-2.5-7B --max_response_length 8192 --train_batch_size 1024 --rollout_n 8 "
    "--kl_loss_coef 0.0001 --entropy_coeffient 0.001 --rollout_gpu_memory_util 0.75 --rollout_tp 2 --save_freq 5 "
)
COMMAND = (
    "python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=1024 actor_rollout_ref.rollout.n=8 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 "
    "actor_rollout_ref.actor.use_kl_loss=True trainer.n_gpus_per_node=8 trainer.nnodes=1 trainer.remove_clip=False "
    "trainer.total_epochs=20 trainer.save_freq=5 "
)


@pytest.mark.parametrize("command", [WRAPPER, COMMAND])
def test_the_published_run(command: str) -> None:
    reading = read(command, rows=8532)
    schedule = reading.schedule
    assert schedule.framework == "SimpleRL"
    assert schedule.algorithm == "GRPO"
    assert schedule.samples_per_rollout == 8192
    assert schedule.samples_per_update == 2048
    assert schedule.updates_per_rollout == 4
    assert schedule.rollouts_per_epoch == 8
    assert (schedule.rollouts, schedule.lr_horizon) == (159, 160)
    assert schedule.rows_dropped_per_epoch == 340
    assert schedule.microbatches_per_update == 128
    assert schedule.step_unit == "rollout"
    assert reading.facts["save_every"] == 5
    assert any(note.kind == "unit" and "steps" in note.text for note in reading.notes)
    assert any(note.kind == "shrinks" for note in reading.notes)


def test_defaults_of_the_script() -> None:
    schedule = read("bash train_grpo_math_tune_ray.sh", rows=8532).schedule
    assert schedule.samples_per_rollout == 2048
    assert schedule.updates_per_rollout == 1


def test_nodes_of_the_script() -> None:
    reading = read(WRAPPER, rows=8532)
    assert reading.schedule.world_size == 8
    assert any("ARNOLD_WORKER_NUM" in note.text for note in reading.notes)
    assert read("ARNOLD_WORKER_NUM=4 " + WRAPPER, rows=8532).schedule.world_size == 32
    assert read(WRAPPER, rows=8532, world_size=16).schedule.world_size == 16
    with pytest.raises(LaunchError, match="8 processes on each node"):
        read(WRAPPER, rows=8532, world_size=12)


def test_mini_batches_that_round_down() -> None:
    command = COMMAND + "actor_rollout_ref.actor.ppo_mini_batch_size=3 actor_rollout_ref.rollout.n=5"
    reading = read(command, rows=8532)
    assert reading.schedule.samples_per_update == 8
    assert reading.schedule.updates_per_rollout == 640
    assert "RLS113" in [finding.code for finding in planned(command, rows=8532).findings]


def test_the_critics_mini_batch_counts_samples() -> None:
    reading = read(COMMAND + "algorithm.adv_estimator=gae critic.ppo_micro_batch_size_per_gpu=4", rows=8532)
    assert reading.schedule.critic is not None
    assert reading.schedule.critic.updates_per_rollout == 32
    assert any(note.kind == "grows" and "critic" in note.text for note in reading.notes)


def test_refusals() -> None:
    with pytest.raises(PlanError, match="Unknown option: --learning_rat"):
        read(WRAPPER + "--learning_rat 1e-6", rows=8532)
    with pytest.raises(SettingError, match="at least 1"):
        read(WRAPPER + "--train_batch_size 0", rows=8532)
    with pytest.raises(PlanError, match="must be divisible by total n_gpus"):
        read(COMMAND + "data.train_batch_size=1001 actor_rollout_ref.rollout.n=3", rows=8532)
