"""EasyR1: sizes in prompts, splits that must be even, rollouts of several smaller batches."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
import yaml

from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.engine import reader
from rlstep_hooks.systems.planned.easyr1 import SYSTEM
from tests.golden.reading import planned, read

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """\
data:
  train_files: hiyouga/math12k@train
  rollout_batch_size: 512
  mini_rollout_batch_size: null
  shuffle: true
algorithm:
  adv_estimator: grpo
  use_kl_loss: true
worker:
  actor:
    global_batch_size: 128
    micro_batch_size_per_device_for_update: 1
    micro_batch_size_per_device_for_experience: 2
    dynamic_batching: true
  rollout:
    n: 5
trainer:
  total_epochs: 15
  max_steps: null
  nnodes: 1
  n_gpus_per_node: 8
  val_freq: 5
  save_freq: 5
"""
"""The sizes of the project's examples/config.yaml."""


@pytest.fixture
def launch(tmp_path: Path) -> str:
    """The command of its examples."""
    (tmp_path / "config.yaml").write_text(CONFIG)
    return f"python3 -m verl.trainer.main config={tmp_path}/config.yaml worker.actor.model.model_path=Qwen/Qwen2.5-7B-Instruct"


def test_the_projects_own_example(launch: str) -> None:
    reading = read(launch, rows=12_000)
    schedule = reading.schedule
    assert (schedule.framework, schedule.algorithm, schedule.world_size) == ("EasyR1", "GRPO", 8)
    assert (schedule.samples_per_rollout, schedule.samples_per_update, schedule.updates_per_rollout) == (2560, 640, 4)
    assert (schedule.rollouts_per_epoch, schedule.rows_dropped_per_epoch) == (23, 224)
    assert (schedule.rollouts, schedule.updates, schedule.lr_ticks, schedule.lr_horizon) == (345, 1380, 345, 345)
    assert schedule.not_evaluated["samples_per_microbatch"] == "micro-batches are cut by token counts"
    assert reading.facts["nominal_updates_per_rollout"] == 4
    assert (reading.facts["save_every"], reading.facts["eval_every"]) == (5, 5)


def test_the_recogniser_tells_it_from_verl(launch: str) -> None:
    assert planned(launch).framework == "easyr1"
    assert planned("python3 -m verl.trainer.main_ppo data.train_batch_size=512").framework == "verl"


def test_without_rows_the_length_is_not_known(launch: str) -> None:
    schedule = read(launch).schedule
    assert (schedule.rollouts, schedule.updates, schedule.updates_per_rollout) == (None, None, 4)
    assert "rows" in schedule.not_evaluated
    assert "hiyouga/math12k@train" in schedule.not_evaluated["rollouts"]
    assert read(f"{launch} trainer.max_steps=100").schedule.updates == 400


def test_max_steps_goes_on_after_the_epochs(launch: str) -> None:
    reading = read(f"{launch} trainer.max_steps=1000 trainer.total_epochs=1", rows=12_000)
    assert (reading.schedule.rollouts, reading.schedule.loader_epochs) == (1000, Fraction(1000, 23))
    assert any("total_epochs: max_steps = 1000" in note.text for note in reading.notes)


def test_rollouts_of_smaller_batches(launch: str) -> None:
    """With 200 rows a batch a rollout of 512 takes three, and 88 prompts are generated for nothing."""
    reading = read(f"{launch} data.mini_rollout_batch_size=200", rows=12_000)
    schedule = reading.schedule
    assert schedule.rollouts_per_epoch == 23  # 60 batches of 200, counted as 12 000 // 512
    assert schedule.data_epochs == Fraction(345 * 600, 12_000)
    assert schedule.epoch_ends_between_rollouts
    assert any(note.kind == "drops" and "88 of the 600 prompts" in note.text for note in reading.notes)
    even = read(f"{launch} data.mini_rollout_batch_size=128", rows=12_000)
    assert not any(note.kind == "drops" for note in even.notes)
    assert (even.schedule.rows_dropped_per_epoch, even.schedule.epoch_ends_between_rollouts) == (96, False)


def test_filtered_prompts_make_epochs_depend_on_the_data(launch: str) -> None:
    schedule = read(f"{launch} data.mini_rollout_batch_size=128 algorithm.online_filtering=True", rows=12_000).schedule
    assert (schedule.rows_bound, schedule.data_epochs, schedule.rollouts) == ("data_dependent", None, 345)
    assert "filtered" in schedule.not_evaluated["data_epochs"]


def test_a_critic_has_sizes_of_its_own_and_the_policy_waits_for_it(launch: str) -> None:
    schedule = read(
        f"{launch} algorithm.adv_estimator=gae trainer.critic_warmup=3 worker.critic.global_batch_size=256 "
        "worker.critic.ppo_epochs=2",
        rows=12_000,
    ).schedule
    assert schedule.critic is not None
    assert (schedule.algorithm, schedule.frozen_rollouts, schedule.updates, schedule.lr_ticks) == (
        "PPO",
        2,
        343 * 4,
        343,
    )
    assert (schedule.critic.samples_per_update, schedule.critic.updates_per_rollout) == (1280, 4)
    assert (schedule.critic.updates, schedule.critic.lr_ticks) == (345 * 4, 345)


def test_micro_batches_are_known_without_dynamic_batching(launch: str) -> None:
    schedule = read(
        f"{launch} worker.actor.dynamic_batching=false worker.actor.micro_batch_size_per_device_for_update=4"
    ).schedule
    assert (schedule.samples_per_microbatch, schedule.microbatches_per_update) == (32, 20)


@pytest.mark.parametrize(
    ("changes", "message", "fix"),
    [
        (
            "worker.actor.global_batch_size=100",
            "Rollout batch size must be divisible by actor global batch size.",
            "worker.actor.global_batch_size = 64 or 128 (prompts)",
        ),
        (
            "worker.actor.micro_batch_size_per_device_for_experience=3",
            "Rollout batch size * rollout.n must be divisible by actor micro batch size for experience.",
            "worker.actor.micro_batch_size_per_device_for_experience = 2 or 4",
        ),
        (
            "algorithm.adv_estimator=gae worker.critic.global_batch_size=300",
            "Rollout batch size must be divisible by critic global batch size.",
            "worker.critic.global_batch_size = 256 or 512 (prompts)",
        ),
        (
            "worker.rollout.n=1",
            "GRPO and RLOO algorithm need `config.worker.rollout.n > 1`.",
            "worker.rollout.n = 2 or more",
        ),
        (
            "worker.actor.micro_batch_size_per_device_for_update=3",
            "actor global batch size per device must be divisible by the micro batch size.",
            "worker.actor.micro_batch_size_per_device_for_update = 2 or 4 (80 samples for each process)",
        ),
        (
            "worker.actor.global_batch_size=1",
            "actor global batch size * ulysses size must be larger than num gpus.",
            "worker.actor.global_batch_size = 2 or more",
        ),
        ("algorithm.adv_estimator=dapo", "Unknown advantage estimator: dapo.", ""),
        (
            "trainer.n_gpus_per_node=6 worker.actor.global_batch_size=256",
            "AssertionError: only support equal chunk. Got size of DataProto 512 and chunk 6.",
            "data.rollout_batch_size = 510 or 516",
        ),
        (
            "data.rollout_batch_size=24 worker.actor.global_batch_size=6 worker.rollout.n=3",
            "AssertionError: only support equal split. Got size of DataProto 9 and split 2.",
            "as a multiple of the 8 processes",
        ),
    ],
)
def test_refusals(launch: str, changes: str, message: str, fix: str) -> None:
    with pytest.raises(PlanError) as caught:
        read(f"{launch} {changes}", rows=12_000)
    assert caught.value.message == message
    assert fix in caught.value.fix


def test_a_mini_batch_is_rounded_down_to_the_processes(launch: str) -> None:
    reading = read(f"{launch} data.rollout_batch_size=48 worker.actor.global_batch_size=4 worker.rollout.n=3")
    assert (reading.schedule.samples_per_update, reading.schedule.updates_per_rollout) == (8, 18)
    assert any("12 samples on 8 processes is rounded down to 8: 18 updates" in note.text for note in reading.notes)


def test_rows_must_fill_a_batch(launch: str) -> None:
    with pytest.raises(PlanError, match="500 rows do not fill a batch of 512"):
        read(launch, rows=500)


def test_a_live_configuration_is_read_as_its_launch(launch: str) -> None:
    """Nested, as `OmegaConf.to_container` gives it."""
    reading = reader.read_config(SYSTEM, yaml.safe_load(CONFIG), rows=12_000)
    assert reading.schedule == read(launch, rows=12_000).schedule
