"""baselines ppo2: the PPO paper's runs, defaults by environment, assertions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError, SettingError
from rlstep_hooks.planning.refusal import PlanError
from tests.golden.reading import planned, read

if TYPE_CHECKING:
    from pathlib import Path

ATARI = "python -m baselines.run --alg=ppo2 --env=BreakoutNoFrameskip-v4 --num_timesteps=1e7 --num_env=8 "


def test_ppo_paper_atari() -> None:
    """Golden: Table 5 of the PPO paper on ppo2."""
    reading = read(ATARI + "--noptepochs=3")
    schedule = reading.schedule
    assert (schedule.prompts_per_rollout, schedule.samples_per_prompt) == (8, 128)
    assert schedule.samples_per_rollout == 1024
    assert schedule.samples_per_update == 256
    assert schedule.updates_per_rollout == 12
    assert (schedule.rollouts, schedule.updates) == (9765, 117180)
    assert (schedule.lr_ticks, schedule.lr_horizon, schedule.lr_clock) == (9765, 9765, "rollout")
    assert schedule.lags == tuple(range(12))
    assert schedule.rows is None
    assert any("last 640 of 10000000" in note.text for note in reading.notes)


def test_defaults_of_atari_and_mujoco() -> None:
    """Golden: defaults.atari() and defaults.mujoco()."""
    assert read(ATARI).schedule.updates_per_rollout == 16
    mujoco = read("python -m baselines.run --alg=ppo2 --env=HalfCheetah-v2 --num_timesteps=1e6").schedule
    assert (mujoco.samples_per_rollout, mujoco.updates_per_rollout, mujoco.samples_per_update) == (2048, 320, 64)
    assert mujoco.rollouts == 488
    assert read("python -m baselines.run").schedule.updates_per_rollout == 320  # Reacher-v2 by default


def test_other_environments_take_the_defaults_of_learn() -> None:
    schedule = read("python -m baselines.run --env=CartPole-v1 --num_env=2").schedule
    assert (schedule.samples_per_rollout, schedule.updates_per_rollout) == (4096, 16)


def test_env_type_decides() -> None:
    launch = "python -m baselines.run --env=MyGame-v0 --num_env=8"
    with pytest.raises(SettingError, match="give --env_type"):
        read(launch)
    assert read(launch + " --env_type=atari").schedule.samples_per_rollout == 1024
    assert read("python -m baselines.run --env=Pong-v0 --num_env=8").schedule.samples_per_rollout == 1024


def test_processors_of_the_machine_are_asked_for() -> None:
    with pytest.raises(SettingError, match="give --num_env N"):
        read("python -m baselines.run --env=PongNoFrameskip-v4")


def test_minibatches_must_divide() -> None:
    with pytest.raises(PlanError, match=r"nbatch % nminibatches == 0 \(1024 % 3\)") as caught:
        read(ATARI + "--nminibatches=3")
    assert caught.value.fix == "nminibatches = 2 or 4"
    plan = planned(ATARI + "--nminibatches=3")
    assert [finding.code for finding in plan.findings] == ["RLS110"]
    assert read(ATARI + "--nminibatches=2").schedule.minibatches == (512, 512)


def test_recurrent_policies_take_whole_environments() -> None:
    assert read(ATARI + "--network=cnn_lstm").schedule.updates_per_rollout == 16
    with pytest.raises(PlanError, match="nenvs % nminibatches") as caught:
        read(ATARI + "--network=cnn_lstm --nminibatches=16")
    assert caught.value.fix == "nminibatches = 8"


def test_exactly_divisible_run_drops_nothing() -> None:
    reading = read(ATARI.replace("1e7", "1024000"))
    assert reading.schedule.rollouts == 1000
    assert reading.notes == ()


def test_shorter_than_one_rollout() -> None:
    reading = read(ATARI.replace("1e7", "1000"))
    assert reading.schedule.rollouts == 0
    assert any("nothing is trained" in note.text for note in reading.notes)


def test_mpi_processes_have_rollouts_of_their_own() -> None:
    reading = read("mpirun -np 4 " + ATARI, world_size=4)
    schedule = reading.schedule
    assert (schedule.samples_per_rollout, schedule.samples_per_update, schedule.updates_per_rollout) == (4096, 1024, 16)
    assert schedule.rollouts == 9765


def test_other_algorithms() -> None:
    with pytest.raises(LaunchError, match="alg = acktr"):
        read("python -m baselines.run --alg=acktr --env=PongNoFrameskip-v4 --num_env=8")


def test_python_file(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "from baselines.ppo2 import ppo2\n"
        "env = make_vec_env('PongNoFrameskip-v4', 'atari', 8, 0)\n"
        "ppo2.learn(network='cnn', env=env, total_timesteps=int(1e6), nsteps=256, nminibatches=8, noptepochs=4, lr=3e-4)\n"
    )
    schedule = read(file).schedule
    assert (schedule.samples_per_rollout, schedule.updates_per_rollout, schedule.rollouts) == (2048, 32, 488)


def test_rate_clock_is_a_finding_unless_constant() -> None:
    assert "RLS610" in [finding.code for finding in planned(ATARI).findings]
    assert "RLS610" not in [finding.code for finding in planned(ATARI + "--lr=2.5e-4").findings]
