"""OAT: the published Dr. GRPO runs, the buffer's length, processes, and what the learning-rate schedule leaves out."""

from __future__ import annotations

from fractions import Fraction

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.refusal import PlanError
from tests.golden.reading import planned, read

# sail-sg/understand-r1-zero examples/qwen2.5-math-7b.sh with its variables filled in.
DR_GRPO = (
    "python train_zero_math.py --critic_type drgrpo --gpus 8 --collocate --vllm_sleep --gradient-checkpointing --flash-attn --bf16 "
    "--learning_rate 0.000001 --lr_scheduler constant --num_ppo_epochs 1 --beta 0 --oracle_type reward --oracle math "
    "--prompt_data ./datasets/train/math_lvl3to5_8k --max-train 9999999 --num_prompt_epoch 20 --num_samples 8 --save_steps -1 "
    "--train_batch_size 128 --train_batch_size_per_device 1 --rollout_batch_size 128 --rollout_batch_size_per_device 16 "
    "--pi_buffer_maxlen_per_device 128 --eval_steps 16 "
)


def test_the_published_run() -> None:
    reading = read(DR_GRPO, rows=8522)
    schedule = reading.schedule
    assert schedule.algorithm == "Dr. GRPO"
    assert schedule.samples_per_rollout == 1024
    assert schedule.updates_per_rollout == 8
    assert schedule.minibatches == (128,) * 8
    assert schedule.microbatches_per_update == 16
    assert schedule.world_size == 8
    assert (schedule.rollouts_per_epoch, schedule.rollouts, schedule.updates) == (66, 1320, 10560)
    assert schedule.lags == tuple(range(8))
    assert schedule.ratio_one_updates == (1,)
    assert schedule.reference_source == "none"
    # The schedule of the learning rate counts neither num_samples nor num_ppo_epochs.
    assert schedule.lr_horizon == 66 * 20
    assert reading.facts["eval_every"] == 16
    assert reading.facts["lr_constant"] is True


def test_max_step_adjustment_makes_up_for_the_samples_of_a_prompt() -> None:
    schedule = read(DR_GRPO + "--max_step_adjustment 8", rows=8522).schedule
    assert schedule.lr_horizon == schedule.lr_ticks == 10560


def test_a_schedule_that_ends_at_an_eighth() -> None:
    plan = planned(DR_GRPO + "--lr_scheduler cosine_with_min_lr", rows=8522)
    assert "RLS601" in [finding.code for finding in plan.findings]


def test_a_short_buffer_drops_samples() -> None:
    reading = read(DR_GRPO + "--pi_buffer_maxlen_per_device 64", rows=8522)
    assert reading.schedule.samples_dropped_per_rollout == 512
    assert reading.schedule.updates_per_rollout == 4
    assert any(note.kind == "drops" and "pushed out" in note.text for note in reading.notes)


def test_a_long_buffer_trains_older_rollouts() -> None:
    reading = read(DR_GRPO + "--pi_buffer_maxlen_per_device 256", rows=8522)
    assert reading.schedule.updates_per_rollout == 16
    assert reading.schedule.updates_bound == "upper"
    assert any(note.kind == "grows" for note in reading.notes)
    cleared = read(DR_GRPO + "--pi_buffer_maxlen_per_device 256 --buffer_clear_every 1", rows=8522)
    assert cleared.schedule.updates_per_rollout == 8


def test_gradients_are_carried() -> None:
    reading = read(DR_GRPO + "--train_batch_size 768", rows=8522)
    assert reading.schedule.updates_per_rollout == Fraction(4, 3)
    assert reading.schedule.updates == 1320 * 4 // 3
    assert any(note.kind == "carries" for note in reading.notes)


def test_learners_without_collocation_are_half_of_the_gpus() -> None:
    command = DR_GRPO.replace("--collocate ", "")
    schedule = read(command + "--pi_buffer_maxlen_per_device 256", rows=8522).schedule
    assert schedule.world_size == 4
    assert schedule.step_means.startswith("1 step = 1 batch of the loader; 2 steps = 1 rollout")
    assert schedule.updates_per_rollout == 8
    assert schedule.rollouts == 1330


def test_the_critic_is_updated_with_the_policy() -> None:
    schedule = read(DR_GRPO + "--critic_type ppo --num_ppo_epochs 2", rows=8522).schedule
    assert schedule.algorithm == "PPO"
    assert schedule.updates_per_rollout == 16
    assert schedule.critic is not None
    assert schedule.critic.updates == schedule.updates


def test_asynchronous_training_lags_by_one() -> None:
    command = (
        DR_GRPO.replace("--collocate ", "")
        + "--asynchronous --rollout_batch_size_per_device 32 --pi_buffer_maxlen_per_device 256"
    )
    schedule = read(command, rows=8522).schedule
    assert schedule.max_age == 1
    assert schedule.rollouts == 66 * 20 - 1


def test_max_train_also_ends_training() -> None:
    reading = read(DR_GRPO.replace("--max-train 9999999 ", ""), rows=8522)
    assert reading.schedule.rollouts == 50000 // 1024 + 1
    assert any("max_train = 50000" in note.text for note in reading.notes)


def test_weights_synced_less_often() -> None:
    schedule = read(DR_GRPO + "--sync_params_every 4", rows=8522).schedule
    assert schedule.max_age == 3
    assert schedule.syncs == "unseen"


@pytest.mark.parametrize(
    ("more", "message", "fix"),
    [
        ("--rollout_batch_size 100", "rollout_batch_size must be divisible", "128"),
        ("--train_batch_size 100", "100 != 1 * 12 * 8", "96 or 104"),
        ("--train_batch_size_per_device 3 --train_batch_size 96", "IndexError", "2 or 4"),
        ("--asynchronous", "async training needs to disable collocation", "collocate"),
    ],
)
def test_refusals(more: str, message: str, fix: str) -> None:
    with pytest.raises(PlanError) as caught:
        read(DR_GRPO + more, rows=8522)
    assert message in caught.value.message
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    "program", ["-m oat.experiment.main", "-m oat.experiment.run_xpo", "oat/experiment/run_offline_ppo.py"]
)
def test_preference_learning_is_not_read(program: str) -> None:
    with pytest.raises(LaunchError, match="learns from preferences"):
        read(f"python {program} --gpus 8")
