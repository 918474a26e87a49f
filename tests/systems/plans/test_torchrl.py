"""torchrl's PPO scripts: frames, whole rollouts, the rate beyond its horizon."""

from __future__ import annotations

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.refusal import PlanError
from tests.golden.reading import planned, read

MUJOCO = "python ppo_mujoco.py "
ATARI = "python sota-implementations/ppo/ppo_atari.py "


def test_mujoco_defaults() -> None:
    reading = read(MUJOCO)
    schedule = reading.schedule
    assert (schedule.samples_per_rollout, schedule.samples_per_update, schedule.updates_per_rollout) == (2048, 64, 320)
    assert (schedule.rollouts, schedule.updates) == (489, 489 * 320)
    assert (schedule.lr_ticks, schedule.lr_horizon) == (489 * 320, 488 * 320)
    assert any("1001472 frames, not 1000000" in note.text for note in reading.notes)
    assert any("0 and below" in note.text for note in reading.notes)
    assert any("rollout is 0:" in note.text for note in read(MUJOCO, version="0.14.0").notes)


def test_frames_that_divide_end_with_their_rate() -> None:
    reading = read(MUJOCO + "collector.total_frames=1024000")
    assert (reading.schedule.rollouts, reading.schedule.lr_ticks, reading.schedule.lr_horizon) == (500, 160000, 160000)
    assert reading.notes == ()


def test_atari_counts_skipped_frames() -> None:
    reading = read(ATARI)
    schedule = reading.schedule
    assert (schedule.samples_per_rollout, schedule.samples_per_update, schedule.updates_per_rollout) == (1024, 256, 12)
    assert (schedule.rollouts, schedule.updates) == (9766, 9766 * 12)
    assert (schedule.prompts_per_rollout, schedule.samples_per_prompt) == (8, 128)
    assert any("4 for each timestep" in note.text for note in reading.notes)


def test_a_short_last_minibatch_is_an_error() -> None:
    """Executed with torchrl 0.10.0: batches of 4, 4 and 2 from 10 items, and IndexError at losses[j, 2]."""
    with pytest.raises(PlanError) as caught:
        read(MUJOCO + "loss.mini_batch_size=100")
    assert caught.value.message == "IndexError: index 20 is out of bounds for dimension 1 with size 20"
    assert "loss.mini_batch_size = 64 or 128" in caught.value.fix
    assert "frames_per_batch = 2000 or 2100" in caught.value.fix
    assert read(MUJOCO + "loss.mini_batch_size=128").schedule.updates_per_rollout == 160


def test_minibatch_above_the_rollout() -> None:
    with pytest.raises(PlanError, match="index 0 is out of bounds"):
        read(MUJOCO + "loss.mini_batch_size=4096")


def test_environments_must_share_the_frames() -> None:
    with pytest.raises(LaunchError, match="3 environments"):
        read(ATARI + "env.num_envs=3")


def test_constant_rate() -> None:
    assert read(MUJOCO + "optim.anneal_lr=False").facts["lr_constant"] is True
    assert planned(MUJOCO + "loss.ppo_epochs=4").schedule is not None
