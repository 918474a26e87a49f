"""SimpleRL's first version: its own launch script, and what it inherits from OpenRLHF 0.5."""

from __future__ import annotations

import pytest

from rlstep_hooks.planning.refusal import PlanError
from tests.golden.reading import read

# train/examples/script/train_ppo_qwen_base_math_lv35_new.sh, without what the schedule does not depend on.
SCRIPT = (
    "python3 openrlhf/cli/train_ppo_ray_box.py --ref_num_nodes 1 --ref_num_gpus_per_node 8 --critic_num_nodes 1 "
    "--critic_num_gpus_per_node 8 --actor_num_nodes 1 --actor_num_gpus_per_node 8 --vllm_num_engines 16 --colocate_actor_ref "
    "--micro_train_batch_size 2 --train_batch_size 128 --micro_rollout_batch_size 2 --rollout_batch_size 1024 "
    "--n_samples_per_prompt 8 --max_samples 100000 --max_epochs 1 --num_episodes 20 --actor_learning_rate 5e-7 "
    "--init_kl_coef 0.01 --prompt_data data/math_level3to5_data_processed_with_qwen_prompt.json --save_steps 4 "
)


def test_the_published_script() -> None:
    reading = read(SCRIPT, rows=8523)
    schedule = reading.schedule
    assert schedule.framework == "SimpleRL v0"
    assert schedule.algorithm == "PPO"
    assert schedule.samples_per_rollout == 8192
    assert schedule.updates_per_rollout == 64
    assert schedule.microbatches_per_update == 8
    assert (schedule.rollouts_per_epoch, schedule.rollouts) == (8, 160)
    assert schedule.rows_dropped_per_epoch == 8523 - 8 * 1024
    assert (schedule.updates, schedule.lr_horizon) == (160 * 64, 8523 * 8 // 128 * 20)
    assert schedule.critic is not None
    assert schedule.critic.updates == schedule.updates
    assert schedule.syncs == "after_updates"
    assert "train/openrlhf" in schedule.sources["updates_per_rollout"]
    assert reading.facts["save_every"] == 4


def test_each_process_draws_whole_prompts() -> None:
    reading = read(SCRIPT + "--rollout_batch_size 1020 --train_batch_size 16", rows=8523)
    assert reading.schedule.prompts_per_rollout == 1016
    assert any(note.kind == "drops" and "1016 of 1020" in note.text for note in reading.notes)


def test_freezing_of_one_step_freezes_one() -> None:
    schedule = read(SCRIPT + "--freezing_actor_steps 1", rows=8523).schedule
    assert schedule.frozen_rollouts == 1
    assert schedule.frozen_samples_kept is False
    assert schedule.syncs == "unseen"


@pytest.mark.parametrize(
    ("more", "message", "fix"),
    [
        ("--actor_num_gpus_per_node 6", "actor_world_size must be power of 2, got 6", "4 or 8"),
        ("--critic_num_gpus_per_node 16", "must be divisible by critic_world_size, got 8 and 16", "8"),
        ("--train_batch_size 100", "100 != 2 * 6 * 8", "96 or 112"),
    ],
)
def test_refusals(more: str, message: str, fix: str) -> None:
    with pytest.raises(PlanError) as caught:
        read(SCRIPT + more, rows=8523)
    assert message in caught.value.message
    assert fix in caught.value.fix
