"""Classic PPO: the expected timeline of each plan, event by event, sums to the totals that the plan states."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.judge.timeline import ExpectedMicroBatch, ExpectedRollout, ExpectedUpdate, expected_events
from tests.golden.reading import read

if TYPE_CHECKING:
    from pathlib import Path

SB3 = "from stable_baselines3 import A2C, PPO\nfrom stable_baselines3.common.env_util import make_vec_env\n"
LLAMA = (
    "model_name_or_path: m\nreward_model: r\nstage: ppo\ndo_train: true\nper_device_train_batch_size: 2\n"
    "gradient_accumulation_steps: 8\nppo_buffer_size: 4\nppo_epochs: 4\nnum_train_epochs: 2.0\n"
)
COMMANDS: dict[str, tuple[str, dict[str, int | str]]] = {
    "baselines": (
        "python -m baselines.run --alg=ppo2 --env=BreakoutNoFrameskip-v4 --num_timesteps=1e4 --num_env=8",
        {},
    ),
    "cleanrl": ("python cleanrl/ppo.py --total-timesteps 10000", {}),
    "cleanrl with an extra mini-batch": ("python cleanrl/ppo.py --num-minibatches 6 --total-timesteps 5000", {}),
    "lm-human-preferences": ("python launch.py train_policy sentiment run", {"framework": "lm_human_preferences"}),
    "torchrl": ("python sota-implementations/ppo/ppo_mujoco.py collector.total_frames=10000", {}),
    "trl ppo": (
        "python ppo.py --num_ppo_epochs 4 --num_mini_batches 4 --per_device_train_batch_size 4 "
        "--gradient_accumulation_steps 8 --num_sample_generations 0 --total_episodes 192",
        {"rows": 96},
    ),
    "stack_llama": (
        "python examples/research_projects/stack_llama/scripts/rl_training.py --batch_size 16 --ppo_epochs 2 --steps 160",
        {"rows": 64},
    ),
}
FILES: dict[str, tuple[str, str, dict[str, int | str]]] = {
    "sb3 ppo": (
        "train.py",
        SB3 + "PPO('MlpPolicy', make_vec_env('C', 4), n_steps=150, batch_size=256, n_epochs=3).learn(2000)\n",
        {},
    ),
    "sb3 a2c": ("train.py", SB3 + "A2C('MlpPolicy', make_vec_env('C', 8)).learn(1000)\n", {}),
    "llamafactory": ("ppo.yaml", LLAMA, {"rows": 192, "world_size": 1}),
}


def check(source: str | Path, options: dict[str, int | str]) -> None:
    schedule = read(source, **options).schedule
    counted = Counter(type(event) for event in expected_events(schedule))
    assert counted[ExpectedRollout] == schedule.rollouts
    assert counted[ExpectedUpdate] == schedule.updates
    if schedule.microbatches_per_rollout is not None:
        assert counted[ExpectedMicroBatch] == schedule.rollouts * schedule.microbatches_per_rollout


@pytest.mark.parametrize("name", COMMANDS)
def test_of_a_command(name: str) -> None:
    check(*COMMANDS[name])


@pytest.mark.parametrize("name", FILES)
def test_of_a_file(name: str, tmp_path: Path) -> None:
    file, text, options = FILES[name]
    (tmp_path / file).write_text(text)
    check(tmp_path / file, options)


def test_the_buffer_size_of_llamafactory_is_the_number_of_minibatches(tmp_path: Path) -> None:
    """Golden: 64 samples, 16 updates of 8 micro-batches, and 128 of one in the last rollout of each pass."""
    file = tmp_path / "ppo.yaml"
    file.write_text(LLAMA)
    schedule = read(file, rows=192, world_size=1).schedule
    assert schedule.updates_per_rollout / schedule.reuse_epochs == schedule.settings["ppo_buffer_size"] == 4
    made: list[list[int]] = []
    for event in expected_events(schedule):
        if isinstance(event, ExpectedRollout):
            made.append([])
        elif isinstance(event, ExpectedUpdate):
            made[-1].append(event.microbatches or 0)
    assert [len(windows) for windows in made] == [16, 16, 128] * 2
    assert made[0] == [8] * 16
    assert made[2] == [1] * 128
