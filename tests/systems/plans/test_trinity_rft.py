"""Trinity-RFT: tasks explored, experiences trained, weights synced every few steps. Sizes are those of its examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.refusal import PlanError
from tests.golden.reading import planned, read

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.schedule import Schedule

CONFIG = """\
algorithm:
  algorithm_type: {algorithm}
  repeat_times: {group}
cluster:
  node_num: 1
  gpu_per_node: 8
buffer:
  total_epochs: {epochs}
  batch_size: {tasks}
{buffer}
  explorer_input:
    taskset:
      path: ${{oc.env:TRINITY_TASKSET_PATH,openai/gsm8k}}
    default_workflow_type: 'math_workflow'
explorer:
  eval_interval: 48
  rollout_model:
    engine_num: {engines}
    tensor_parallel_size: 1
synchronizer:
  sync_method: 'nccl'
  sync_interval: {interval}
{more}
"""


def config(folder: Path, more: str = "", buffer: str = "", **changed: object) -> Path:
    values = {"algorithm": "grpo", "group": 8, "epochs": 1, "tasks": 96, "engines": 2, "interval": 1} | changed
    file = folder / "run.yaml"
    file.write_text(CONFIG.format(**values, more=more, buffer=buffer))
    return file


def schedule_of(folder: Path, **changed: object) -> Schedule:
    return read(config(folder, **changed), rows=7473).schedule


def test_its_example_on_gsm8k(tmp_path: Path) -> None:
    schedule = schedule_of(tmp_path)
    assert (schedule.framework, schedule.algorithm, schedule.world_size) == ("Trinity-RFT", "GRPO", 6)
    assert (schedule.prompts_per_rollout, schedule.samples_per_rollout, schedule.samples_per_update) == (96, 768, 768)
    assert (schedule.rollouts, schedule.updates, schedule.max_age) == (77, 77, 0)
    assert (schedule.old_logprob_source, schedule.reference_source, schedule.lr_horizon) == (
        "engine",
        "at_rollout",
        None,
    )
    assert planned(f"trinity run --config {config(tmp_path)}").framework == "trinity_rft"


def test_epochs_run_on_into_each_other(tmp_path: Path) -> None:
    """`read_async` fills a batch with the first tasks of the next epoch: 3 x 7 473 / 96 = 233.5."""
    assert schedule_of(tmp_path, epochs=3).rollouts == 233


@pytest.mark.parametrize(
    ("interval", "more", "age"),
    [
        (4, "", 3),
        (1, "  sync_offset: 1", 1),
        (16, "  sync_offset: 2", 17),
        (2, "  sync_style: dynamic_by_explorer", None),
    ],
)
def test_samples_are_as_old_as_the_interval_and_the_offset(
    tmp_path: Path, interval: int, more: str, age: int | None
) -> None:
    schedule = schedule_of(tmp_path, interval=interval, more=more)
    assert schedule.max_age == age
    assert ("max_age" in schedule.not_evaluated) == (age is None)


def test_a_smaller_training_step_and_ppo(tmp_path: Path) -> None:
    schedule = schedule_of(tmp_path, buffer="  train_batch_size: 384", algorithm="ppo")
    assert (schedule.samples_per_update, schedule.updates_per_rollout, schedule.updates) == (384, 2, 154)
    assert schedule.critic is not None
    assert schedule.step_unit == "update"


def test_what_it_refuses_and_what_is_not_planned(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="Explorer requires 8 GPUs, but total available GPUs are 8"):
        read(config(tmp_path, engines=8))
    with pytest.raises(PlanError, match=r"batch_size \(770\) must be divisible by \(6\)"):
        read(config(tmp_path, group=10, tasks=77))
    for changed, why in (
        ({"buffer": "  train_batch_size: 576"}, "does not divide the 768 experiences"),
        ({"algorithm": "mix"}, "second buffer"),
        ({"more": "mode: train"}, "does not both explore and train"),
        ({"more": "stages:\n  - stage_name: sft"}, "several stages"),
    ):
        with pytest.raises(LaunchError, match=why):
            read(config(tmp_path, **changed))
