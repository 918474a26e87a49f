"""TRL's old `step()`: mini-batches that are micro-batches, and what a launch does not say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.refusal import PlanError
from tests.golden.reading import read

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """\
from trl import PPOConfig, PPOTrainer
config = PPOConfig(model_name="m", batch_size=64, mini_batch_size=2, gradient_accumulation_steps=8, ppo_epochs=4, steps=20000)
trainer = PPOTrainer(config=config)
for batch in trainer.dataloader:
    trainer.step([], [], [])
"""


def _script(tmp_path: Path, text: str = SCRIPT) -> Path:
    file = tmp_path / "train.py"
    file.write_text(text)
    return file


def test_python_file(tmp_path: Path) -> None:
    """The sizes of the golden case: rollouts of 64, 16 updates, 128 in the last of a pass."""
    reading = read(_script(tmp_path), rows=200)
    schedule = reading.schedule
    assert schedule.samples_per_rollout == 64
    assert schedule.updates_per_rollout == 16
    assert schedule.samples_per_update == 16
    assert schedule.microbatches_per_rollout == 128
    assert (schedule.rollouts_per_epoch, schedule.rows_dropped_per_epoch) == (3, 8)
    assert schedule.rollouts is None
    assert "the script decides" in schedule.not_evaluated["rollouts"]
    assert any("128 in all" in note.text for note in reading.notes)
    assert any(note.kind == "ignores" and note.text.startswith("steps") for note in reading.notes)


def test_defaults_make_one_update_a_pass() -> None:
    schedule = read("python train.py --log_with wandb", framework="trl_ppo_step").schedule
    assert (schedule.samples_per_rollout, schedule.updates_per_rollout) == (128, 4)


def test_each_process_has_a_batch_of_its_own(tmp_path: Path) -> None:
    reading = read(f"accelerate launch --num_processes 4 {_script(tmp_path)}", rows=1000)
    assert (reading.schedule.samples_per_rollout, reading.schedule.samples_per_update) == (256, 64)
    assert any("ticks 4 times" in note.text for note in reading.notes)


def test_early_stopping_is_an_upper_bound(tmp_path: Path) -> None:
    assert (
        read(_script(tmp_path, SCRIPT.replace("steps=20000", "early_stopping=True"))).schedule.updates_bound == "upper"
    )
    assert read(_script(tmp_path)).schedule.updates_bound == "exact"


def test_forward_batch_size_overwrites_the_mini_batch(tmp_path: Path) -> None:
    schedule = read(_script(tmp_path, SCRIPT.replace("steps=20000", "forward_batch_size=4"))).schedule
    assert schedule.updates_per_rollout == 8


def test_stack_llama() -> None:
    """Defaults of the script, which are not those of PPOConfig."""
    schedule = read(
        "accelerate launch --multi_gpu --num_processes 8 examples/research_projects/stack_llama/scripts/rl_training.py "
        "--log_with=wandb --batch_size=32 --ppo_epochs=4 --gradient_accumulation_steps=8 --mini_batch_size=1 --early_stopping=True"
    ).schedule
    assert (schedule.samples_per_rollout, schedule.updates_per_rollout) == (256, 16)
    plain = read("python examples/research_projects/stack_llama/scripts/rl_training.py").schedule
    assert (plain.samples_per_rollout, plain.samples_per_update, plain.updates_per_rollout) == (32, 4, 32)
    assert plain.rollouts == 625  # ceil(20000 / 32), at most one pass over the rows
    few = read("python examples/research_projects/stack_llama/scripts/rl_training.py", rows=330).schedule
    assert (few.rollouts, few.updates) == (10, 9 * 32 + 4 * 32)


def test_sizes_that_do_not_divide(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        read(_script(tmp_path, SCRIPT.replace("batch_size=64,", "batch_size=72,")))
    assert caught.value.message == (
        "`batch_size` must be a multiple of `mini_batch_size * gradient_accumulation_steps`, inexact division: 72 / 16 = 4.5"
    )
    assert caught.value.fix == "batch_size = 64 or 80"


def test_later_releases_have_no_step(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"later ones have no step\(\)"):
        read(_script(tmp_path), version="0.12.0")
