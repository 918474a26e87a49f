"""RLlib: mini-batches over the ends of passes, shares of the environments, refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError, NoLaunchError
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.engine.launches import plan_launch
from tests.golden.reading import read

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.reading import Reading


def _python(tmp_path: Path, calls: str) -> Reading:
    file = tmp_path / "train.py"
    file.write_text(
        f"from ray.rllib.algorithms.ppo import PPOConfig\nconfig = (PPOConfig().environment('CartPole-v1'){calls})\n"
    )
    return read(file, framework="rllib")


def test_defaults(tmp_path: Path) -> None:
    schedule = _python(tmp_path, "").schedule
    assert schedule.samples_per_rollout == 4000
    assert schedule.samples_per_update == 128
    assert schedule.updates_per_rollout == 938  # ceil(30 x 4000 / 128)
    assert schedule.updates_bound == "data_dependent"
    assert schedule.remainder == "wrap"
    assert schedule.rollouts is None
    assert "--stop-iters" in schedule.not_evaluated["rollouts"]


def test_one_rounding_for_all_passes(tmp_path: Path) -> None:
    uneven = _python(tmp_path, ".training(train_batch_size_per_learner=1000, minibatch_size=300, num_epochs=4)")
    assert uneven.schedule.updates_per_rollout == 14  # not 4 x 4, not 4 x 3
    assert any("filled up with 200 timesteps" in note.text for note in uneven.notes)
    assert any(note.kind == "carries" for note in uneven.notes)
    even = _python(tmp_path, ".training(train_batch_size_per_learner=1000, minibatch_size=250, num_epochs=4)")
    assert even.schedule.updates_per_rollout == 16
    assert not any(note.kind in ("pads", "carries") for note in even.notes)
    assert any("at least 17 updates" in note.text for note in even.notes)
    whole = _python(tmp_path, ".training(train_batch_size_per_learner=1000, minibatch_size=400, num_epochs=4)")
    assert whole.schedule.updates_per_rollout == 10
    assert not any(note.kind == "pads" for note in whole.notes)


def test_learners_multiply_rollout_and_update(tmp_path: Path) -> None:
    calls = ".training(train_batch_size_per_learner=2000, minibatch_size=200, num_epochs=5).learners(num_learners=2)"
    schedule = _python(tmp_path, calls).schedule
    assert (schedule.world_size, schedule.samples_per_rollout, schedule.samples_per_update) == (2, 4000, 400)
    assert schedule.updates_per_rollout == 50


@pytest.mark.parametrize(
    ("runners", "each", "wanted", "collected"),
    [(2, 2, 2000, 2000), (4, 3, 2500, 2502), (2, 20, 512, 520), (0, 1, 500, 500), (0, 3, 500, 501)],
)
def test_auto_fragments_share_the_timesteps(
    tmp_path: Path, runners: int, each: int, wanted: int, collected: int
) -> None:
    calls = (
        f".training(train_batch_size_per_learner={wanted})"
        f".env_runners(num_env_runners={runners}, num_envs_per_env_runner={each})"
    )
    assert _python(tmp_path, calls).schedule.samples_per_rollout == collected


def test_given_fragments_are_repeated(tmp_path: Path) -> None:
    calls = ".training(train_batch_size_per_learner=1000).env_runners(num_env_runners=2, rollout_fragment_length={})"
    assert _python(tmp_path, calls.format(100)).schedule.samples_per_rollout == 1000
    assert _python(tmp_path, calls.format(180)).schedule.samples_per_rollout == 1080
    with pytest.raises(PlanError, match="cannot be achieved") as caught:
        _python(tmp_path, calls.format(200 * 3))
    assert caught.value.fix == "rollout_fragment_length = 'auto' or 500"


def test_minibatch_above_the_batch(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"`minibatch_size` \(512\) must be <= `train_batch_size_per_learner` \(500\)"):
        _python(tmp_path, ".training(train_batch_size_per_learner=500, minibatch_size=512)")
    assert (
        _python(
            tmp_path, ".training(train_batch_size_per_learner=512, minibatch_size=512)"
        ).schedule.updates_per_rollout
        == 30
    )


def test_names_from_before_and_stop_criteria(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("config = PPOConfig().training(train_batch_size=1000, sgd_minibatch_size=100, num_sgd_iter=3)\n")
    schedule = read(f"python {file} --stop-iters 50").schedule
    assert (schedule.updates_per_rollout, schedule.rollouts, schedule.updates) == (30, 50, 1500)


def test_old_stack_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("config = PPOConfig().training(num_sgd_iter=3)\n")
    with pytest.raises(LaunchError, match="old API stack"):
        read(file, version="2.9.0")


def test_a_configuration_of_another_program_with_epochs_below_training_is_not_rllibs(tmp_path: Path) -> None:
    file = tmp_path / "finetune.yaml"
    file.write_text("model: m\ntraining:\n  num_epochs: 1\n  batch_size: 4\n  gradient_accumulation_steps: 4\n")
    with pytest.raises(NoLaunchError):
        plan_launch([str(file)], Options())
