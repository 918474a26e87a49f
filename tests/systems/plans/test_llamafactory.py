"""LLaMA-Factory's PPO: golden case, the flush at the end of a pass, and its two roundings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.engine.launches import plan_launch
from tests.golden.reading import planned, read

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.reading import Reading

GOLDEN = """\
stage: ppo
do_train: true
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
ppo_buffer_size: 4
ppo_epochs: 4
num_train_epochs: 1.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
"""


def _read(tmp_path: Path, more: str = "", **options: int | str) -> Reading:
    file = tmp_path / "ppo.yaml"
    file.write_text(GOLDEN + more)
    return read(file, **{"world_size": 1, **options})


def test_golden(tmp_path: Path) -> None:
    """Golden: rollouts of 64, 16 updates, 128 in the last rollout of a pass (executed as a copy of the loop)."""
    reading = _read(tmp_path, rows=192)
    schedule = reading.schedule
    assert schedule.samples_per_rollout == 64
    assert schedule.updates_per_rollout == 16
    assert schedule.minibatches == (16, 16, 16, 16)
    assert schedule.updates == 16 + 16 + 128
    assert schedule.lr_ticks == schedule.rollouts == 3
    assert schedule.step_unit == "rollout"
    assert schedule.lags == tuple(range(128))  # those of the last rollout of a pass


def test_rounding_of_rollouts_and_of_the_rate_differ(tmp_path: Path) -> None:
    reading = _read(tmp_path, rows=230)  # 3.6 batches
    assert (reading.schedule.rollouts, reading.schedule.lr_horizon) == (3, 4)
    assert reading.schedule.rows_dropped_per_epoch == 230 - 192
    assert any("planned for 4 rollouts" in note.text for note in reading.notes)
    even = _read(tmp_path, rows=256)
    assert (even.schedule.rollouts, even.schedule.lr_horizon) == (4, 4)
    assert not any(note.kind == "drops" for note in even.notes)


def test_the_gap_of_the_rate_is_a_finding(tmp_path: Path) -> None:
    file = tmp_path / "ppo.yaml"
    file.write_text(GOLDEN)
    assert "RLS610" in [finding.code for finding in planned(file, rows=256, world_size=1).findings]


def test_max_steps_counts_rollouts(tmp_path: Path) -> None:
    file = tmp_path / "ppo.yaml"
    file.write_text(GOLDEN + "max_steps: 7\n")
    schedule = read(file, rows=192, world_size=1).schedule
    assert (schedule.rollouts, schedule.lr_horizon) == (7, 7)
    assert schedule.updates == 2 * (16 + 16 + 128) + 16
    unknown = read(file, world_size=1).schedule
    assert (unknown.rollouts, unknown.updates) == (7, None)
    assert "--rows" in unknown.not_evaluated["updates"]


def test_without_accumulation_nothing_is_flushed(tmp_path: Path) -> None:
    file = tmp_path / "ppo.yaml"
    file.write_text(
        GOLDEN.replace("gradient_accumulation_steps: 8", "gradient_accumulation_steps: 1") + "max_steps: 7\n"
    )
    schedule = read(file, world_size=1).schedule
    assert (schedule.samples_per_rollout, schedule.updates_per_rollout, schedule.updates) == (8, 16, 7 * 16)


def test_too_few_rows_end_at_once_or_fail(tmp_path: Path) -> None:
    assert _read(tmp_path, rows=63).schedule.rollouts == 0
    file = tmp_path / "ppo.yaml"
    assert "RLS510" in [finding.code for finding in planned(file, rows=63, world_size=1).findings]
    file.write_text(GOLDEN + "max_steps: 7\n")
    with pytest.raises(PlanError, match="StopIteration: 63 rows"):
        read(file, rows=63, world_size=1)


def test_processes(tmp_path: Path) -> None:
    file = tmp_path / "ppo.yaml"
    file.write_text(GOLDEN)
    assert read(f"NPROC_PER_NODE=4 NNODES=2 llamafactory-cli train {file}", rows=1024).schedule.world_size == 8
    assert (
        read(f"CUDA_VISIBLE_DEVICES=0,1 llamafactory-cli train {file}", rows=1024).schedule.samples_per_rollout == 128
    )
    with pytest.raises(LaunchError, match="give --world-size"):
        read(f"llamafactory-cli train {file}", rows=1024)
    assert read(f"llamafactory-cli train {file}", rows=1024, world_size=2).schedule.world_size == 2


def test_arguments_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "ppo.yaml"
    file.write_text(GOLDEN)
    schedule = read(f"llamafactory-cli train {file} ppo_epochs=2", rows=256, world_size=1).schedule
    assert schedule.updates_per_rollout == 8
    flags = "--stage ppo --per_device_train_batch_size 2 --gradient_accumulation_steps 4"
    assert read(f"python src/train.py {flags}", rows=64).schedule.updates_per_rollout == 4


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="does not support eval dataset yet"):
        _read(tmp_path, "val_size: 0.1\n", rows=192)
    file = tmp_path / "sft.yaml"
    file.write_text("stage: sft\nppo_epochs: 1\n")
    with pytest.raises(LaunchError, match="stage = sft"):
        read(f"llamafactory-cli train {file}", world_size=1)


@pytest.mark.parametrize(
    ("text", "says"), [("run_exp()\n", "stage = sft"), ("Trainer(m).train()\n", "the name of a program")]
)
def test_a_script_of_others_with_its_name_is_none_of_its_own(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").write_text(text)
    with pytest.raises(LaunchError, match=says):
        plan_launch([str(tmp_path / "src/train.py")], Options())
