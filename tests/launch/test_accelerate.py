"""The number of processes that accelerate's configuration gives, wherever the launch leaves it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path


def processes(command: str, version: str | None = None) -> int:
    schedule = plan_launch(shlex.split(command), Options(rows=1000, version=version)).schedule
    assert schedule is not None
    return schedule.world_size


@pytest.mark.parametrize(
    ("text", "options", "count"),
    [
        ("distributed_type: MULTI_GPU\nnum_processes: 6\n", "", 6),
        ("distributed_type: MULTI_GPU\nnum_processes: 6\n", "--num_processes 2", 2),
        # accelerate 1.15.0: neither --multi_gpu nor anything else is set, so that simple_launcher starts one process.
        ("distributed_type: 'NO'\nnum_processes: 6\n", "", 1),
        ("distributed_type: 'NO'\nnum_processes: 6\n", "--num_processes 4", 1),
        ("distributed_type: 'NO'\nnum_processes: 6\n", "--multi_gpu", 6),
    ],
)
def test_the_file_and_the_options(text: str, options: str, count: int, tmp_path: Path) -> None:
    config = tmp_path / "acc.yaml"
    config.write_text(f"compute_environment: LOCAL_MACHINE\n{text}")
    assert (
        processes(f"accelerate launch --config_file {config} {options} -m trl.scripts.grpo --num_generations 2")
        == count
    )


@pytest.mark.parametrize("named", ["acc.yaml", "recipes/acc.yaml"])
def test_a_file_beside_the_script_or_from_the_root_of_its_repository(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project" / "recipes").mkdir(parents=True)
    (tmp_path / "project" / "pyproject.toml").touch()
    (tmp_path / "project" / "recipes" / "acc.yaml").write_text("num_processes: 6\n")
    script = tmp_path / "project" / "recipes" / "run.sh"
    script.write_text(f"accelerate launch --config_file {named} -m trl.scripts.grpo --num_generations 2\n")
    monkeypatch.chdir(tmp_path)
    assert processes(str(script)) == 6


@pytest.mark.parametrize(
    ("words", "version", "count"),
    [
        ("--num_processes 4", "1.16.0", 4),
        ("--accelerate_config zero3", "1.16.0", 8),
        ("--accelerate_config zero3 --num_processes 4", "1.16.0", 4),
        ("--accelerate_config single_gpu --num_processes 4", "1.16.0", 1),
        ("--accelerate_config {folder}/acc.yaml", "1.16.0", 6),
        ("--config_file {folder}/acc.yaml", "1.16.0", 6),
        ("--config {folder}/grpo.yaml", "1.16.0", 4),
        ("--config {folder}/grpo.yaml --num_processes 2", "1.16.0", 2),
        # trl/cli.py 0.28.0 drops what is left over.
        ("--num_processes 4", "0.28.0", 1),
        ("", "1.16.0", 1),
    ],
)
def test_trl_hands_on_what_is_accelerates(words: str, version: str, count: int, tmp_path: Path) -> None:
    (tmp_path / "acc.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 6\n")
    (tmp_path / "grpo.yaml").write_text("num_generations: 2\nnum_processes: 4\n")
    command = f"trl grpo --num_generations 2 {words.format(folder=tmp_path)}"
    assert processes(command, version) == count


def test_a_configuration_alone_says_it(tmp_path: Path) -> None:
    (tmp_path / "grpo.yaml").write_text("per_device_train_batch_size: 4\nnum_generations: 2\nnum_processes: 4\n")
    assert processes(str(tmp_path / "grpo.yaml")) == 4
