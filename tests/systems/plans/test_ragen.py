"""RAGEN: groups of environments, filtered before an update; the numbers of its own train_all.sh, worked out by hand from the source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.planning.refusal import PlanError
from tests.golden.reading import planned, read

if TYPE_CHECKING:
    from pathlib import Path

SOKOBAN = "python train.py --config-name _2_sokoban "
ALL = "actor_rollout_ref.rollout.rollout_filter_ratio=1 "
CONFIG = "defaults:\n  - ppo_trainer\n  - envs\nes_manager:\n  train:\n    env_groups: 4\n    group_size: 8\nppo_mini_batch_size: 8\n"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # samples of a rollout, left out, samples of an update, updates of a rollout, updates of the run
        ("", (128, 96, 32, 1, 200)),
        (ALL, (128, 0, 32, 4, 800)),
        ("actor_rollout_ref.rollout.rollout_filter_ratio=0.5", (128, 64, 32, 2, 400)),
        (
            "es_manager.train.env_groups=40 es_manager.train.env_configs.n_groups=[40] trainer.total_training_steps=40",
            (640, 480, 32, 5, 200),
        ),
        # 0.3 x 8 groups are 2; 2 x 16 samples in mini-batches of 24: the last is smaller.
        ("actor_rollout_ref.rollout.rollout_filter_ratio=0.3 ppo_mini_batch_size=24", (128, 96, 24, 2, 400)),
    ],
)
def test_the_numbers_of_its_own_scripts(changes: str, expected: tuple[int, ...]) -> None:
    schedule = read(SOKOBAN + changes).schedule
    assert (
        schedule.samples_per_rollout,
        schedule.samples_dropped_per_rollout,
        schedule.samples_per_update,
        schedule.updates_per_rollout,
        schedule.updates,
    ) == expected
    assert (schedule.rollouts, schedule.lr_horizon) == (schedule.lr_ticks, schedule.rollouts)
    assert schedule.critic is not None
    assert schedule.critic.updates_per_rollout == schedule.updates_per_rollout


def test_groups_that_are_left_out_by_their_rewards_are_no_finding() -> None:
    plan = planned(SOKOBAN)
    assert [finding.code for finding in plan.findings if finding.severity != "info"] == []
    assert any(note.kind == "drops" and "32 of 128 samples" in note.text for note in plan.notes)


def test_its_configurations_and_settings_are_recognised(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    config = tmp_path / "config" / "mine.yaml"
    config.write_text(CONFIG)
    assert planned(str(config)).framework == "ragen"
    plan = planned(f"python {tmp_path}/train.py --config-name mine")
    assert plan.framework == "ragen"
    assert plan.schedule is not None
    assert (plan.schedule.samples_per_rollout, plan.schedule.updates_per_rollout) == (32, 1)
    assert (
        planned("python train.py es_manager.train.env_groups=16 es_manager.train.env_configs.n_groups=[16]").framework
        == "ragen"
    )


def test_grpo_compares_no_samples_here() -> None:
    notes = planned(SOKOBAN + ALL + "algorithm.adv_estimator=grpo").notes
    assert any("each is a group of its own" in note.text and "here identity" in note.text for note in notes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("trainer.n_gpus_per_node=2 system.CUDA_VISIBLE_DEVICES=[0,1]", "tensor_model_parallel_size (1) is recommended to be the same"),
        ("trainer.n_gpus_per_node=2", "CUDA_VISIBLE_DEVICES (0) must have the same number of GPUs as n_gpus_per_node (2)"),
        ("ppo_mini_batch_size=64", "env_groups * group_size * rollout_filter_ratio (32.0) must be greater than or equal"),
        ("micro_batch_size_per_gpu=3", "ppo_mini_batch_size (32) must be divisible by micro_batch_size_per_gpu"),
        ("model_path=meta-llama/Llama-3.2-3B-Instruct", "response mask is currently only supported for qwen models"),
        ("es_manager.train.env_groups=16", "Sum of n_groups must equal env_groups. Got sum(8) != 16"),
        ("algorithm.bi_level_gae=True agent_proxy.use_turn_scores=True", "use_turn_scores are not correctly supported"),
    ],
)  # fmt: skip
def test_refusals_in_its_own_words(changes: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        read(SOKOBAN + "es_manager.train.env_configs.n_groups=[8] " + changes)
    assert message in caught.value.message
