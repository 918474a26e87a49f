"""SkyRL: golden cases, remainders and refusals."""

from __future__ import annotations

from fractions import Fraction

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.refusal import PlanError
from tests.golden.reading import planned, read

GSM8K = (
    "uv run --isolated --extra fsdp -m skyrl.train.entrypoints.main_base trainer.train_batch_size=1024 "
    "trainer.policy_mini_batch_size=256 generator.n_samples_per_prompt=5 trainer.epochs=20 "
    "trainer.placement.policy_num_gpus_per_node=4 trainer.micro_train_batch_size_per_gpu=64 "
)


def test_gsm8k_example() -> None:
    schedule = read(GSM8K, rows=7473).schedule
    assert schedule.samples_per_rollout == 5120
    assert schedule.samples_per_update == 1280
    assert schedule.updates_per_rollout == 4
    assert (schedule.rollouts, schedule.updates) == (140, 560)
    assert schedule.rows_dropped_per_epoch == 7473 - 7 * 1024
    assert (schedule.lr_ticks, schedule.lr_horizon) == (560, 560)
    assert schedule.lags == (0, 1, 2, 3)
    assert schedule.ratio_one_updates == (1,)
    assert schedule.microbatches_per_update == 5


def test_epochs_over_a_rollout_multiply_updates() -> None:
    schedule = read(GSM8K + "trainer.update_epochs_per_batch=3", rows=7473).schedule
    assert schedule.updates_per_rollout == 12
    assert schedule.lags == tuple(range(12))


def test_max_training_steps_only_shortens() -> None:
    assert read(GSM8K + "trainer.max_training_steps=10", rows=7473).schedule.rollouts == 10
    assert read(GSM8K + "trainer.max_training_steps=1000", rows=7473).schedule.rollouts == 140


def test_the_critic_has_its_own_minibatch() -> None:
    critic = (
        "trainer.critic.model.path=m trainer.critic_mini_batch_size=128 trainer.micro_train_batch_size_per_gpu=32 "
        "trainer.placement.critic_num_gpus_per_node=4"
    )
    schedule = read(GSM8K + critic, rows=7473).schedule
    assert schedule.critic is not None
    assert schedule.critic.updates_per_rollout == 8
    assert schedule.updates_per_rollout == 4


def test_sizes_of_a_critic_do_not_matter_without_one() -> None:
    plan = planned(GSM8K + "trainer.placement.critic_num_gpus_per_node=0", rows=7473)
    assert plan.schedule is not None
    assert "trainer.critic_mini_batch_size" not in plan.schedule.settings
    assert [setting.name for setting in plan.unused] == ["trainer.placement.critic_num_gpus_per_node"]


def test_rows_unknown_leave_totals_unknown() -> None:
    schedule = read(GSM8K).schedule
    assert schedule.rollouts is None
    assert schedule.updates_per_rollout == Fraction(4)
    assert "--rows" in schedule.not_evaluated["rollouts"]


@pytest.mark.parametrize(
    ("setting", "message", "fix"),
    [
        ("trainer.policy_mini_batch_size=300", "train_batch_size 1024 should be divisible by policy_mini_batch_size 300", "256 or 512"),
        ("trainer.policy_mini_batch_size=5120", "trainer.train_batch_size >= cfg.trainer.policy_mini_batch_size", "1024"),
        ("trainer.micro_train_batch_size_per_gpu=60", "should be divisible by micro_train_batch_size_per_gpu 60", "40 or 64"),
    ],
)  # fmt: skip
def test_refusals(setting: str, message: str, fix: str) -> None:
    with pytest.raises(PlanError) as caught:
        read(GSM8K + setting, rows=7473)
    assert message in caught.value.message
    assert fix in caught.value.fix
    plan = planned(GSM8K + setting, rows=7473)
    assert plan.schedule is None
    assert [finding.code for finding in plan.findings] == ["RLS110"]


@pytest.mark.parametrize("program", ["skyrl.train.entrypoints.main_base", "skyrl_train.entrypoints.main_base"])
def test_turns_that_are_samples_of_their_own_are_not_counted(program: str) -> None:
    launch = GSM8K.replace("skyrl.train.entrypoints.main_base", program)
    with pytest.raises(LaunchError, match="each turn of a conversation is a sample of its own"):
        read(launch + "generator.step_wise_trajectories=true generator.max_turns=6", rows=7473)
    assert read(launch + "generator.step_wise_trajectories=false", rows=7473).schedule.samples_per_rollout == 5120
