"""Stable-Baselines3: golden case, truncated mini-batches, whole rollouts, the zoo."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError, SettingError, UnknownValueError
from rlstep_hooks.planning.refusal import PlanError
from tests.golden.reading import planned, read

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.reading import Reading

HEAD = "from stable_baselines3 import A2C, PPO\nfrom stable_baselines3.common.env_util import make_vec_env\n"


def _python(tmp_path: Path, body: str) -> Reading:
    file = tmp_path / "train.py"
    file.write_text(HEAD + body)
    return read(file)


def test_defaults(tmp_path: Path) -> None:
    """Golden: SB3 default 1e6."""
    reading = _python(tmp_path, "model = PPO('MlpPolicy', 'CartPole-v1')\nmodel.learn(total_timesteps=1_000_000)\n")
    schedule = reading.schedule
    assert (schedule.samples_per_rollout, schedule.samples_per_update) == (2048, 64)
    assert schedule.updates_per_rollout == 320
    assert (schedule.rollouts, schedule.updates) == (489, 156480)
    assert schedule.rollouts * schedule.reuse_epochs == 4890  # train/n_updates
    assert any("ends at 1001472 timesteps" in note.text for note in reading.notes)
    assert "passes, 10 for each rollout" in schedule.step_means
    assert schedule.old_logprob_source == "at_rollout"
    assert reading.facts["lr_constant"] is True


def test_truncated_minibatch_is_kept(tmp_path: Path) -> None:
    body = (
        "env = make_vec_env('CartPole-v1', n_envs=4)\n"
        "PPO('MlpPolicy', env, n_steps={}, batch_size=256, n_epochs=3).learn(100_000)\n"
    )
    uneven = _python(tmp_path, body.format(150))
    assert uneven.schedule.minibatches == (256, 256, 88)
    assert uneven.schedule.updates_per_rollout == 9
    assert uneven.schedule.remainder == "keep"
    assert any("truncated mini-batch of size 88 after every 2" in note.text for note in uneven.notes)
    even = _python(tmp_path, body.format(128))
    assert even.schedule.minibatches == (256, 256)
    assert even.schedule.updates_per_rollout == 6
    assert even.schedule.remainder == "error"


def test_whole_rollouts_on_both_sides(tmp_path: Path) -> None:
    body = "model = PPO('MlpPolicy', 'CartPole-v1', n_steps=1000, batch_size=100)\nmodel.learn(total_timesteps={})\n"
    assert _python(tmp_path, body.format(10_000)).schedule.rollouts == 10
    assert _python(tmp_path, body.format(10_001)).schedule.rollouts == 11
    assert _python(tmp_path, body.format(9_999)).schedule.rollouts == 10


def test_batch_above_the_buffer(tmp_path: Path) -> None:
    reading = _python(tmp_path, "PPO('MlpPolicy', 'CartPole-v1', n_steps=32, batch_size=64).learn(1000)\n")
    assert reading.schedule.minibatches == (32,)
    assert any(note.kind == "shrinks" for note in reading.notes)


def test_positions(tmp_path: Path) -> None:
    schedule = _python(tmp_path, "PPO('MlpPolicy', 'CartPole-v1', 1e-4, 512, 128, 5).learn(5120)\n").schedule
    assert (schedule.samples_per_rollout, schedule.updates_per_rollout, schedule.rollouts) == (512, 20, 10)


def test_target_kl_is_an_upper_bound(tmp_path: Path) -> None:
    reading = _python(tmp_path, "PPO('MlpPolicy', 'CartPole-v1', target_kl=0.02).learn(10_000)\n")
    assert reading.schedule.updates_bound == "upper"
    assert any("before the mini-batch" in note.text for note in reading.notes)


def test_a2c(tmp_path: Path) -> None:
    schedule = _python(
        tmp_path, "env = make_vec_env('CartPole-v1', 8)\nA2C('MlpPolicy', env).learn(total_timesteps=500_000)\n"
    ).schedule
    assert schedule.algorithm == "A2C"
    assert schedule.old_logprob_source == "none"
    assert (schedule.samples_per_rollout, schedule.updates_per_rollout) == (40, 1)
    assert (schedule.rollouts, schedule.updates) == (12500, 12500)


def test_environments_that_are_not_written_down(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"--set make_vec_env\.n_envs=N"):
        _python(tmp_path, "PPO('MlpPolicy', build()).learn(10_000)\n")
    assert (
        _python(
            tmp_path, "env = gym.make('CartPole-v1')\nPPO('MlpPolicy', env).learn(10_000)\n"
        ).schedule.prompts_per_rollout
        == 1
    )
    with pytest.raises(UnknownValueError, match="n_envs"):
        _python(tmp_path, "env = make_vec_env('CartPole-v1', n_envs=cpus())\nPPO('MlpPolicy', env).learn(10_000)\n")


OWN = "import gymnasium as gym\nclass Own(gym.Env):\n    pass\n"


@pytest.mark.parametrize(
    ("made", "number"),
    [
        (OWN + "env = Own()\nenv = Monitor(env)\n", 1),
        (OWN + "def make():\n    return Own()\nenv = make()\n", 1),
        ("import gymnasium as gym\nenv = gym.make('CartPole-v1')\nenv = gym.wrappers.TimeLimit(env, 10)\n", 1),
        ("N = 8\nenv = SubprocVecEnv([make(i) for i in range(N)])\n", 8),
        ("env = VecNormalize(DummyVecEnv([lambda: make(0), lambda: make(1)]))\n", 2),
        ("env = DummyVecEnv([make] * 4)\n", 4),
        # What is only evaluated counts for nothing.
        ("env = SubprocVecEnv([make(i) for i in range(8)])\nevaluated = gym.make('CartPole-v1')\n", 8),
    ],
)
def test_environments_are_followed_to_where_they_are_made(tmp_path: Path, made: str, number: int) -> None:
    imported = "from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize\n"
    imported += "from stable_baselines3.common.monitor import Monitor\n"
    schedule = _python(tmp_path, f"{imported}{made}PPO('MlpPolicy', env).learn(100_000)\n").schedule
    assert schedule.prompts_per_rollout == number


@pytest.mark.parametrize(
    "made",
    [
        "env = SubprocVecEnv([make(i) for i in range(cpus())])\n",
        "env = Own()\nif several():\n    env = SubprocVecEnv([make(i) for i in range(8)])\n",
        "env = vectors.stack(gym.make('CartPole-v1'), 8)\n",
    ],
)
def test_environments_whose_number_only_the_run_knows_are_asked_for(tmp_path: Path, made: str) -> None:
    imported = f"from stable_baselines3.common.vec_env import SubprocVecEnv\n{OWN}"
    with pytest.raises((SettingError, UnknownValueError), match="n_envs"):
        _python(tmp_path, f"{imported}{made}PPO('MlpPolicy', env).learn(100_000)\n")


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="`batch_size` must be greater than 1"):
        _python(tmp_path, "PPO('MlpPolicy', 'CartPole-v1', batch_size=1).learn(10)\n")
    assert _python(tmp_path, "PPO('MlpPolicy', 'CartPole-v1', batch_size=1, normalize_advantage=False).learn(10)\n")
    with pytest.raises(PlanError, match=r"must be greater than 1\. Currently n_steps=1 and n_envs=1"):
        _python(tmp_path, "PPO('MlpPolicy', 'CartPole-v1', n_steps=1).learn(10)\n")


def test_zoo_atari() -> None:
    reading = read("python -m rl_zoo3.train --algo ppo --env BreakoutNoFrameskip-v4")
    schedule = reading.schedule
    assert (schedule.samples_per_rollout, schedule.samples_per_update, schedule.updates_per_rollout) == (1024, 256, 16)
    assert schedule.rollouts == 9766
    assert any("is below 0 in the last rollout" in note.text for note in reading.notes)
    assert read("python -m rl_zoo3.train --algo ppo --env ALE/Pong-v5 -n 102400").schedule.rollouts == 100


def test_zoo_file_and_parameters(tmp_path: Path) -> None:
    file = tmp_path / "ppo.yml"
    file.write_text(
        "default:\n  n_timesteps: !!float 1e6\n  policy: MlpPolicy\n"
        "CartPole-v1:\n  n_envs: 8\n  n_timesteps: !!float 1e5\n  n_steps: 32\n  batch_size: 256\n"
        "  n_epochs: 20\n  learning_rate: lin_0.001\n"
    )
    launch = f"python -m rl_zoo3.train --algo ppo --env CartPole-v1 --conf-file {file}"
    schedule = read(launch).schedule
    assert (schedule.samples_per_rollout, schedule.updates_per_rollout, schedule.rollouts) == (256, 20, 391)
    over = read(launch + " -params n_envs:4 batch_size:64").schedule
    assert (over.samples_per_rollout, over.updates_per_rollout) == (128, 40)
    assert read(launch.replace("CartPole-v1", "Acrobot-v1")).schedule.samples_per_rollout == 2048
    with pytest.raises(SettingError, match="give that file with --conf-file"):
        read("python -m rl_zoo3.train --algo ppo --env CartPole-v1")


def test_zoo_algorithms() -> None:
    assert read("python -m rl_zoo3.train --algo a2c --env PongNoFrameskip-v4").schedule.samples_per_rollout == 80
    with pytest.raises(LaunchError, match="algo = sac"):
        read("python -m rl_zoo3.train --algo sac --env PongNoFrameskip-v4")


def test_the_clock_of_a_schedule_is_said() -> None:
    codes = [
        finding.code for finding in planned("python -m rl_zoo3.train --algo ppo --env PongNoFrameskip-v4").findings
    ]
    assert "RLS610" in codes


def test_an_lstm_has_the_loop_of_ppo_and_defaults_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "from sb3_contrib import RecurrentPPO\nmodel = RecurrentPPO('MlpLstmPolicy', 'CartPole-v1', target_kl=0.01)\n"
        "model.learn(12_800)\n"
    )
    reading = read(file)
    assert (reading.schedule.samples_per_rollout, reading.schedule.samples_per_update) == (128, 128)
    assert (reading.schedule.updates_per_rollout, reading.schedule.rollouts) == (10, 100)
    assert reading.schedule.updates_bound == "upper"
    assert any("RecurrentPPO adds all 10 passes" in note.text for note in reading.notes)
