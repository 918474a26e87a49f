"""Open-Reasoner-Zero: published runs, updates by number, rows that do not fill a rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.refusal import PlanError
from tests.golden.reading import planned, read

if TYPE_CHECKING:
    from pathlib import Path

ORZ_7B = "python -m playground.orz_7b_ppo "


def test_the_7b_run() -> None:
    reading = read(ORZ_7B, rows=57_000)
    schedule = reading.schedule
    assert schedule.samples_per_rollout == 8192
    assert schedule.updates_per_rollout == 1
    assert schedule.updates_bound == "exact"
    assert schedule.lags == (0,)
    assert schedule.critic is not None
    assert schedule.critic.updates_per_rollout == 12
    assert schedule.critic.updates_bound == "upper"
    assert schedule.world_size == schedule.critic.world_size == 32
    assert schedule.rollouts_per_epoch == 446
    assert schedule.rollouts == 446 * 20
    assert schedule.samples_of_last_rollout == (57_000 - 445 * 128) * 64
    assert any(note.kind == "drops" and "up to 11 packs" in note.text for note in reading.notes)


def test_grpo_has_no_critic() -> None:
    schedule = read("python -m playground.orz_7b_grpo", rows=57_000).schedule
    assert schedule.critic is None
    assert schedule.algorithm == "GRPO"


def test_overrides_come_before_the_script() -> None:
    schedule = read(ORZ_7B + "exp.policy_update_steps=4 exp.max_epochs=2 exp.actor_num_nodes=8", rows=128).schedule
    assert schedule.updates_per_rollout == 8
    assert schedule.updates_bound == "upper"
    assert schedule.samples_per_update is None
    assert schedule.lags == tuple(range(8))
    assert schedule.world_size == 8


def test_freezing_of_n_steps_freezes_one_more() -> None:
    schedule = read(ORZ_7B + "exp.freezing_actor_steps=2", rows=1280).schedule
    assert schedule.frozen_rollouts == 3
    assert schedule.updates == 20 * 10 - 3
    assert schedule.critic is not None
    assert schedule.critic.updates == 20 * 10 * 12


def test_a_script_of_ones_own(tmp_path: Path) -> None:
    script = tmp_path / "orz_mine.py"
    script.write_text(
        "from orz.exps.examples.ppo.ppo_base_exp import BasePPOExp, BasePPOExpConfig\n"
        "NODES = 4\n\n\nclass PPOExpConfig(BasePPOExpConfig):\n"
        "    actor_num_nodes: int = NODES\n    actor_num_gpus_per_node: int = 1\n    rollout_batch_size: int = 64\n"
        "    n_samples_per_prompt: int = 8\n    micro_train_batch_size: int = 1\n    micro_forward_batch_size: int = 1\n"
        "    num_episodes: int = 2\n    policy_update_steps: int = 2\n    critic_pretrain: str = ''\n"
    )
    schedule = read(f"python {script} exp.num_episodes=3", rows=640).schedule
    assert schedule.world_size == 4
    assert schedule.samples_per_rollout == 512
    assert schedule.updates_per_rollout == 2
    assert schedule.rollouts == 30
    assert schedule.critic is None


def test_refusals() -> None:
    with pytest.raises(PlanError, match="should be 1 when packing samples"):
        read(ORZ_7B + "exp.micro_train_batch_size=2")
    with pytest.raises(PlanError, match="ZeroDivisionError") as caught:
        read(ORZ_7B, rows=100)
    assert "100 or smaller" in caught.value.fix
    with pytest.raises(LaunchError, match="DEBUG_MODE"):
        read("DEBUG_MODE=True " + ORZ_7B)


def test_the_ratio_is_one_in_the_published_run() -> None:
    plan = planned(ORZ_7B, rows=57_000)
    assert "RLS102" in [finding.code for finding in plan.findings]
