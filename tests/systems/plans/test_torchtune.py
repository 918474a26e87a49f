"""torchtune: golden cases of both recipes, units of num_steps, horizons and refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError, SettingError
from rlstep_hooks.planning.refusal import PlanError
from tests.golden.reading import planned, read

if TYPE_CHECKING:
    from pathlib import Path

MISTRAL = "tune run ppo_full_finetune_single_device --config mistral/7B_full_ppo_low_memory "
GRPO = "tune run --nproc_per_node 8 dev/grpo_full_finetune_distributed --config dev/3B_full_grpo "


def test_ppo_mistral() -> None:
    """golden.json: torchtune ppo mistral."""
    reading = read(MISTRAL, rows=5000)
    schedule = reading.schedule
    assert (schedule.rollouts, schedule.updates_per_rollout, schedule.updates) == (78, 1, 78)
    assert (schedule.lr_ticks, schedule.lr_horizon) == (78, 78)
    assert schedule.rows_dropped_per_epoch == 5000 - 39 * 128
    assert (schedule.old_logprob_source, schedule.step_unit) == ("at_rollout", "update")
    assert (reading.facts["lr_constant"], reading.facts["lr_warmup"]) == (False, 100)
    assert [note.kind for note in reading.notes] == ["unit", "unit", "drops"]


def test_grpo_dev() -> None:
    """golden.json: torchtune grpo dev."""
    reading = read(GRPO + "ppo_epochs=2", rows=6725)
    schedule = reading.schedule
    assert (schedule.samples_per_rollout, schedule.updates_per_rollout, schedule.rollouts) == (128, 2, 200)
    assert schedule.rollouts_per_epoch == 841
    # Made for all epochs of rollouts: neither passes nor num_steps are in it.
    assert (schedule.lr_ticks, schedule.lr_horizon) == (400, 8410)
    assert schedule.lags == (0, 1)
    assert not schedule.rows_reshuffled
    assert reading.facts["lr_warmup"] == 50


@pytest.mark.parametrize(
    ("rows", "processes", "batch", "per_epoch", "dropped", "repeated"),
    [(16, 2, 1, 8, 0, 0), (15, 2, 1, 8, 0, 1), (17, 2, 4, 2, 1, 0), (15, 2, 4, 2, 0, 1), (14, 2, 4, 1, 6, 0)],
)
def test_rows_of_grpo_are_drawn_twice_or_dropped(
    rows: int, processes: int, batch: int, per_epoch: int, dropped: int, repeated: int
) -> None:
    launch = GRPO.replace("8", str(processes), 1) + f"batch_size={batch} num_steps=1000 epochs=3"
    reading = read(launch, rows=rows)
    schedule = reading.schedule
    assert (schedule.rollouts_per_epoch, schedule.rollouts) == (per_epoch, 3 * per_epoch)
    assert schedule.rows_dropped_per_epoch == dropped
    assert ("pads" in [note.kind for note in reading.notes]) == bool(repeated)


def test_overrides_and_files(tmp_path: Path) -> None:
    path = tmp_path / "ppo.yaml"
    path.write_text(
        "batch_size: 64\nnum_steps: 6400\nppo_epochs: 2\nppo_batch_size: 32\ngradient_accumulation_steps: 4\nshuffle: True\n"
        "forward_batch_size: 16\n"
    )
    schedule = read(f"tune run ppo_full_finetune_single_device --config {path}").schedule
    assert (schedule.rollouts, schedule.updates_per_rollout, schedule.updates) == (100, 4, 400)
    assert (schedule.samples_per_update, schedule.microbatches_per_update) == (32, 4)
    assert read(path).schedule.updates == 400
    assert read(MISTRAL + "num_steps=256 ppo_epochs=3").schedule.updates == 6


def test_what_was_read_is_not_called_unused() -> None:
    plan = planned(MISTRAL + "num_steps=256 lr_scheduler.num_warmup_steps=5 seed=1")
    assert [setting.name for setting in plan.unused] == ["seed"]
    other = planned(MISTRAL + "grpo_samples=4")
    assert [setting.name for setting in other.unused] == ["grpo_samples"]


def test_rollouts_of_few_rows() -> None:
    assert read(MISTRAL, rows=100).schedule.rollouts == 0
    assert read(MISTRAL, rows=128).schedule.rollouts == 78


def test_without_a_schedule_the_rate_is_constant() -> None:
    launch = "tune run ppo_full_finetune_single_device --config llama2/1B_full_ppo_low_memory_single_device"
    reading = read(launch)
    assert reading.facts["lr_constant"] is True
    assert reading.schedule.rollouts == 62


def test_without_rows_the_end_of_the_rate_is_not_known() -> None:
    """It is made for all epochs of the rows, also where num_steps ends the run before."""
    schedule = read(GRPO).schedule
    assert (schedule.rollouts, schedule.lr_ticks, schedule.lr_horizon) == (200, 200, None)
    assert "--rows" in schedule.not_evaluated["lr_horizon"]


@pytest.mark.parametrize(
    ("settings", "message", "fix"),
    [
        ("forward_batch_size=48", "batch_size (128) must be exactly divisible by forward_batch_size (48).", "32 or 64"),
        ("ppo_batch_size=100", "batch_size (128) must be exactly divisible by ppo_batch_size (100).", "64 or 128"),
        (
            "gradient_accumulation_steps=3 optimizer_in_bwd=False",
            "ppo_batch_size (128) must be exactly divisible by gradient_accumulation_steps (3).",
            "2 or 4",
        ),
        ("gradient_accumulation_steps=2", "Gradient accumulation is not supported with optimizer in bwd.", "= 1"),
        ("num_steps=127", "num_steps 127 must be greater than the batch size 128.", "128"),
    ],
)
def test_refusals(settings: str, message: str, fix: str) -> None:
    with pytest.raises(PlanError) as caught:
        read(MISTRAL + settings)
    assert message in caught.value.message
    assert fix in caught.value.fix
    assert [finding.code for finding in planned(MISTRAL + settings).findings] == ["RLS110"]


def test_what_is_not_known() -> None:
    with pytest.raises(SettingError, match="batch_size is missing"):
        read("tune run ppo_full_finetune_single_device --config my/own")
    with pytest.raises(LaunchError, match="another recipe"):
        read("tune run dev/async_grpo_full_finetune_distributed --config dev/qwen3B_async_grpo")
