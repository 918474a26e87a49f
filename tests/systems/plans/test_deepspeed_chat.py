"""DeepSpeed-Chat: carried gradients, generation batches that wait, horizons by float division."""

from __future__ import annotations

from fractions import Fraction

import pytest

from rlstep_hooks.launch.text import LaunchError
from tests.golden.reading import read

LAUNCH = (
    "deepspeed --num_gpus 8 main.py --per_device_generation_batch_size 16 --per_device_training_batch_size 4 --generation_batches 1 "
    "--num_padding_at_beginning 1 --num_warmup_steps 100 --ppo_epochs 1 --gradient_accumulation_steps "
)


def test_single_node_script() -> None:
    reading = read(LAUNCH + "4", rows=12800)
    schedule = reading.schedule
    assert (schedule.world_size, schedule.samples_per_rollout) == (8, 128)
    assert (schedule.updates_per_rollout, schedule.samples_per_update) == (1, 128)
    assert (schedule.rollouts, schedule.updates, schedule.lr_ticks, schedule.lr_horizon) == (100, 100, 100, 100)
    assert schedule.critic is not None
    assert schedule.critic.updates == 100
    assert schedule.remainder == "error"


def test_phase_3_has_a_part_of_the_rows() -> None:
    def said(more: str) -> list[str]:
        return [note.text for note in read(f"{LAUNCH}4{more}", rows=12800).notes if "--data_split" in note.text]

    assert ["2,4,4" in text for text in said("")] == [True]
    assert ["0,0,10" in text for text in said(" --data_split 0,0,10")] == [True]


def test_gradients_are_carried() -> None:
    reading = read(LAUNCH + "3", rows=12800)
    assert reading.schedule.updates_per_rollout == Fraction(4, 3)
    assert reading.schedule.updates == 133
    assert reading.schedule.remainder == "carry"
    assert any(note.kind == "carries" for note in reading.notes)
    several = read(LAUNCH + "8", rows=12800).schedule
    assert (several.updates_per_rollout, several.updates) == (Fraction(1, 2), 50)
    assert not any(note.kind == "carries" for note in read(LAUNCH + "2", rows=12800).notes)


def test_last_generation_batch_may_be_smaller() -> None:
    """101 rows for each process: 6 full batches and one of 5, cut into 4 and 1."""
    schedule = read(LAUNCH + "1", rows=808).schedule
    assert schedule.rollouts == 7
    assert schedule.updates == 6 * 4 + 2
    assert schedule.lr_horizon == 7 * 4


def test_training_batch_that_does_not_divide() -> None:
    reading = read(LAUNCH.replace("training_batch_size 4", "training_batch_size 6") + "1", rows=1280)
    assert reading.schedule.minibatches == (48, 48, 32)
    assert reading.schedule.updates == 30
    assert reading.schedule.lr_horizon == 26  # int(10 x 16 / 6)
    assert reading.schedule.remainder == "keep"
    assert any("ends with a training batch of 4, not 6" in note.text for note in reading.notes)


def test_generation_batches_wait() -> None:
    launch = LAUNCH.replace("generation_batches 1", "generation_batches 3") + "1 --num_train_epochs 2"
    reading = read(launch, rows=1280)  # 10 generation batches in each pass
    schedule = reading.schedule
    assert (schedule.samples_per_rollout, schedule.updates_per_rollout) == (384, 12)
    assert schedule.rollouts == 6  # floor(20 / 3)
    assert any("last 2 generation batches" in note.text for note in reading.notes)
    assert any("wait for the next pass" in note.text for note in reading.notes)
    whole = read(launch, rows=1152)
    assert (whole.schedule.rollouts, whole.schedule.rollouts_per_epoch) == (6, 3)
    assert not any(note.kind in ("drops", "carries") for note in whole.notes)


def test_ppo_epochs_and_unsupervised_data() -> None:
    more = "4 --unsupervised_dataset_name wikitext --unsupervised_dataset_config_name wikitext-103-raw-v1"
    reading = read(LAUNCH.replace("ppo_epochs 1", "ppo_epochs 2") + more, rows=12800)
    assert (reading.schedule.updates_per_rollout, reading.schedule.lags) == (2, (0, 1))
    assert any("unsupervised" in note.text for note in reading.notes)


def test_gpus_of_the_machine() -> None:
    launch = "deepspeed --master_port 12346 main.py --per_device_generation_batch_size 4"
    with pytest.raises(LaunchError, match="give --world-size"):
        read(launch, rows=100)
    assert read(launch, rows=100, world_size=1).schedule.samples_per_rollout == 4


def test_rows_unknown() -> None:
    schedule = read(LAUNCH + "4").schedule
    assert schedule.rollouts is None
    assert schedule.updates_per_rollout == 1
