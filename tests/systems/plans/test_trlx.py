"""trlX: whole chunks, a short last batch, epochs that are rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import SettingError
from rlstep_hooks.planning.refusal import PlanError
from tests.golden.reading import read

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.reading import Reading

YAML = """\
train:
  seq_length: 1024
  epochs: {epochs}
  total_steps: {steps}
  batch_size: {batch}
  checkpoint_interval: 1000
  eval_interval: 100
  trainer: AcceleratePPOTrainer
method:
  name: PPOConfig
  num_rollouts: {rollouts}
  chunk_size: {chunk}
  ppo_epochs: 4
"""
USUAL = {"epochs": 100, "steps": 10000, "batch": 32, "rollouts": 128, "chunk": 128}


def _yaml(tmp_path: Path, **changes: int) -> Reading:
    file = tmp_path / "ppo.yml"
    file.write_text(YAML.format(**{**USUAL, **changes}))
    return read(file, world_size=1)


def test_default_ppo_config(tmp_path: Path) -> None:
    """The sizes of trlx/data/default_configs.py default_ppo_config."""
    reading = _yaml(tmp_path)
    schedule = reading.schedule
    assert (schedule.samples_per_rollout, schedule.updates_per_rollout) == (128, 16)
    assert (schedule.rollouts, schedule.updates) == (100, 1600)
    assert schedule.step_unit == "update"
    assert reading.facts == {"save_every": 1000, "eval_every": 100}
    assert [note.kind for note in reading.notes] == ["unit"]


def test_the_scheduler_has_a_length_of_its_own(tmp_path: Path) -> None:
    """`scheduler.kwargs.T_max`, which trlX's own configurations set to 10 000 or to 1e12, far beyond their runs."""
    schedule = _yaml(tmp_path).schedule
    assert schedule.lr_horizon is None
    assert "T_max" in schedule.not_evaluated["lr_horizon"]


def test_total_steps_cut_a_rollout(tmp_path: Path) -> None:
    reading = _yaml(tmp_path, steps=1000)
    assert (reading.schedule.rollouts, reading.schedule.updates) == (63, 1000)
    assert any("after 8 of its 16 updates" in note.text for note in reading.notes)
    whole = _yaml(tmp_path, steps=1600)
    assert (whole.schedule.rollouts, whole.schedule.updates) == (100, 1600)


def test_chunks_are_whole(tmp_path: Path) -> None:
    reading = _yaml(tmp_path, chunk=48)
    assert reading.schedule.samples_per_rollout == 144
    assert any("144 samples for each process, not 128" in note.text for note in reading.notes)
    assert reading.schedule.minibatches == (32, 32, 32, 32, 16)
    assert reading.schedule.updates_per_rollout == 20
    assert reading.schedule.remainder == "keep"
    assert _yaml(tmp_path, chunk=64).schedule.samples_per_rollout == 128


def test_processes_have_rollouts_and_ticks_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "ppo.yml"
    file.write_text(YAML.format(**USUAL))
    reading = read(file, world_size=4)
    schedule = reading.schedule
    assert (schedule.samples_per_rollout, schedule.samples_per_update, schedule.updates_per_rollout) == (512, 128, 16)
    assert (schedule.updates, schedule.lr_ticks) == (1600, 6400)
    assert any("4 ticks" in note.text for note in reading.notes)


def test_rows_that_do_not_fill_chunks(tmp_path: Path) -> None:
    file = tmp_path / "ppo.yml"
    file.write_text(YAML.format(**USUAL))
    assert read(file, rows=1280, world_size=1).schedule.updates_bound == "exact"
    assert read(file, rows=1300, world_size=1).schedule.updates_bound == "data_dependent"


def test_micro_batch_must_divide(tmp_path: Path) -> None:
    file = tmp_path / "ppo.yml"
    file.write_text(YAML.format(**USUAL).replace("batch_size: 32", "batch_size: 32\n  minibatch_size: 12"))
    with pytest.raises(PlanError, match="Minibatch size must divide batch size") as caught:
        read(file, world_size=1)
    assert caught.value.fix == "train.minibatch_size = 8 or 16"
    file.write_text(YAML.format(**USUAL).replace("batch_size: 32", "batch_size: 32\n  minibatch_size: 8"))
    assert read(file, world_size=1).schedule.microbatches_per_update == 4


def test_python_file(tmp_path: Path) -> None:
    file = tmp_path / "ppo.py"
    file.write_text(
        "config = TRLConfig(\n"
        "    train=TrainConfig(seq_length=1024, epochs=100, total_steps=10000, batch_size=32, pipeline='PromptPipeline'),\n"
        "    method=PPOConfig(name='PPOConfig', num_rollouts=128, chunk_size=128, ppo_epochs=4, init_kl_coef=0.001),\n"
        ")\n"
    )
    assert read(file, world_size=1).schedule.updates == 1600


def test_missing_sizes(tmp_path: Path) -> None:
    file = tmp_path / "ppo.yml"
    file.write_text("method:\n  num_rollouts: 128\n  chunk_size: 16\n")
    with pytest.raises(SettingError, match=r"method\.ppo_epochs is missing"):
        read(file, world_size=1)
