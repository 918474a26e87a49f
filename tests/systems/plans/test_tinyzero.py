"""TinyZero's launch: the published script before and after "Fix Ray OOM", and what its code does otherwise than configured."""

from __future__ import annotations

import pytest

from rlstep_hooks.launch.text import SettingError
from rlstep_hooks.planning.refusal import PlanError
from tests.golden.reading import read

SCRIPT = (
    "python3 -m verl.trainer.main_ppo data.train_files=train.parquet data.train_batch_size=256 data.val_batch_size=1312 "
    "actor_rollout_ref.actor.ppo_micro_batch_size=8 actor_rollout_ref.rollout.log_prob_micro_batch_size=8 "
    "critic.ppo_micro_batch_size=8 trainer.default_hdfs_dir=null trainer.project_name=TinyZero "
    "trainer.n_gpus_per_node=2 trainer.nnodes=1 trainer.save_freq=100 "
    "trainer.total_epochs=15 "
)
HEAD = SCRIPT + "actor_rollout_ref.actor.ppo_mini_batch_size=64 "


@pytest.mark.parametrize(("minibatch", "updates"), [(128, 2), (64, 4)])
def test_the_published_script(minibatch: int, updates: int) -> None:
    reading = read(SCRIPT + f"actor_rollout_ref.actor.ppo_mini_batch_size={minibatch}", rows=327_680)
    schedule = reading.schedule
    assert schedule.framework == "TinyZero"
    assert schedule.rollouts_per_epoch == 1280
    assert schedule.updates_per_rollout == updates
    # 19 200 are configured; the counter starts at 1 and ends training one rollout early.
    assert schedule.lr_horizon == 19_200
    assert schedule.rollouts == 19_199
    assert schedule.updates == 19_199 * updates
    assert schedule.critic is not None
    assert schedule.critic.updates_per_rollout == updates
    assert any(note.kind == "shrinks" and "one rollout fewer" in note.text for note in reading.notes)
    assert reading.facts["save_every"] == 100


def test_ppo_epochs_are_ignored() -> None:
    reading = read(HEAD + "actor_rollout_ref.actor.ppo_epochs=3", rows=327_680)
    assert reading.schedule.updates_per_rollout == 4
    assert any(note.kind == "ignores" and "ppo_epochs" in note.text for note in reading.notes)


def test_mini_batches_are_divided_before_they_are_multiplied() -> None:
    more = "actor_rollout_ref.actor.ppo_mini_batch_size=9 actor_rollout_ref.rollout.n=4 actor_rollout_ref.actor.ppo_micro_batch_size=8"
    reading = read(SCRIPT + more + " algorithm.adv_estimator=grpo", rows=327_680)
    assert reading.schedule.samples_per_update == 32
    assert reading.schedule.critic is None
    assert any(note.kind == "grows" for note in reading.notes)


def test_total_training_steps() -> None:
    schedule = read(HEAD + "trainer.total_training_steps=100", rows=327_680).schedule
    assert (schedule.rollouts, schedule.lr_horizon) == (99, 100)


def test_world_size_given_by_the_user() -> None:
    schedule = read(HEAD, rows=327_680, world_size=4).schedule
    assert schedule.world_size == 4


def test_a_launch_that_is_refused_as_written_is_refused_for_other_processes_too() -> None:
    for processes in (None, 4):
        with pytest.raises(PlanError, match="ZeroDivisionError"):
            read(HEAD + "trainer.n_gpus_per_node=128", rows=327_680, world_size=processes)


@pytest.mark.parametrize("role", ["actor_rollout_ref.actor", "critic"])
def test_more_sequence_parallel_processes_than_gpus(role: str) -> None:
    with pytest.raises(SettingError, match="= 16 is more than all 2 GPUs"):
        read(HEAD + f"{role}.ulysses_sequence_parallel_size=16", rows=327_680)


def test_micro_batches_of_a_critic_whose_last_mini_batch_is_smaller() -> None:
    more = "trainer.n_gpus_per_node=1 data.train_batch_size=7 actor_rollout_ref.actor.ppo_mini_batch_size=7 "
    more += "actor_rollout_ref.actor.ppo_micro_batch_size=7 critic.ppo_mini_batch_size=2 critic.ppo_micro_batch_size=1"
    schedule = read(SCRIPT + more, rows=327_680).schedule
    assert schedule.microbatches_per_update == 1
    assert schedule.critic is not None
    assert (schedule.critic.minibatches, schedule.critic.microbatches_per_rollout) == ((2, 2, 2, 1), 7)
    assert schedule.critic.microbatches_per_update is None


def test_refusals() -> None:
    with pytest.raises(PlanError, match="AssertionError"):
        read(HEAD + "actor_rollout_ref.actor.ppo_micro_batch_size=48", rows=327_680)
    with pytest.raises(PlanError) as caught:
        read(HEAD, rows=100)
    assert "100 or smaller" in caught.value.fix
