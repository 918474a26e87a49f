"""Launches that name DeepSpeed, planned where a release with a known fault is installed: the plan warns, before anything is trained."""

from __future__ import annotations

import json
import shlex
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.deepspeed_engine import launch as of_launches
from rlstep_hooks.systems.engine.launches import plan_launch
from rlstep_hooks.systems.openrlhf.observe.deployment import engine_faults

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = "-m trl.scripts.grpo --num_generations 8 --gradient_accumulation_steps {}"
LAST, ENDS, ADAM = (
    "ZeRO-2 loses all micro-batches of an update but the last",
    "ZeRO-2 with optimizer offload keeps the first and the last micro-batch of an update",
    "Adam begins at step 1 in DeepSpeed without ZeRO, in bf16 or fp16",
)
STILL = "with ZeRO-3 the moving average of the weights stands still"
"""OpenRLHF's own, whatever DeepSpeed is installed."""
ZERO: dict[str, dict[str, object]] = {
    "2": {"stage": 2},
    "2-none": {"stage": 2, "offload_optimizer": {"device": "none"}},
    "2-offload": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}},
    "3-offload": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
    "0": {"stage": 0},
}


def warned(command: str, release: str, patch: pytest.MonkeyPatch, *, version: str = "1.16.0") -> list[str]:
    """What a plan says of the installed release; `version` is the framework's."""
    patch.setattr(of_launches, "release_here", lambda package: release)
    plan = plan_launch(shlex.split(command), Options(rows=10_000, version=version))
    return [f.observed.partition(": ")[2] for f in plan.findings if f.code == "RLS119"]


@pytest.mark.parametrize(
    ("zero", "release", "accumulation", "said"),
    [
        ("2", "0.18.2", 2, [LAST]),
        ("2-none", "0.17.6", 4, [LAST]),
        ("2", "0.18.2", 1, []),
        ("2", "0.18.3", 4, []),
        ("2-offload", "0.18.9", 3, [ENDS]),
        ("2-offload", "0.18.9", 2, []),
        ("2-offload", "0.19.0", 8, []),
        ("3-offload", "0.18.2", 8, []),
        ("0", "0.19.8", 1, [ADAM]),
        ("2", "", 4, []),
    ],
)
def test_of_a_configuration_of_deepspeed(
    zero: str, release: str, accumulation: int, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "engine.json"
    file.write_text(json.dumps({"bf16": {"enabled": "auto"}, "zero_optimization": ZERO[zero]}))
    command = f"torchrun --nproc_per_node 8 {COMMAND.format(accumulation)} --deepspeed {file}"
    assert warned(command, release, monkeypatch) == said


def test_adam_begins_rightly_in_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "engine.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 0}}))
    command = f"torchrun --nproc_per_node 8 {COMMAND.format(1)} --bf16 false --deepspeed {file}"
    assert warned(command, "0.19.8", monkeypatch) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n  offload_optimizer_device: none\n", [LAST]),
        ("distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n  offload_optimizer_device: cpu\n", [ENDS]),
        ("distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\n", []),
        ("distributed_type: MULTI_GPU\ndeepspeed_config:\n  zero_stage: 2\n", []),
        ("distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: {engine}\n", [LAST]),
        ("distributed_type: [\n", []),
    ],
)
def test_of_a_configuration_of_accelerate(
    text: str, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, file = tmp_path / "engine.json", tmp_path / "accelerate.yaml"
    engine.write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    file.write_text(text.replace("{engine}", str(engine)))
    command = f"accelerate launch --config_file {file} --num_processes 8 {COMMAND.format(4)}"
    assert warned(command, "0.18.2", monkeypatch) == said


def test_of_a_configuration_that_trl_ships(monkeypatch: pytest.MonkeyPatch) -> None:
    command = "trl grpo --num_generations 8 --gradient_accumulation_steps 4 --accelerate_config {}"
    assert warned(command.format("zero2"), "0.18.2", monkeypatch) == [LAST]
    assert warned(command.format("zero3"), "0.18.2", monkeypatch) == []


def test_a_file_that_is_not_here_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    command = f"torchrun --nproc_per_node 8 {COMMAND.format(4)} --deepspeed nowhere.json"
    assert warned(command, "0.18.2", monkeypatch) == []


OPENRLHF = (
    "python -m openrlhf.cli.train_ppo_ray --vllm.num_engines 1 --actor.num_gpus_per_node 2 --critic.num_gpus_per_node 2 "
    "--rollout.batch_size 64 --rollout.n_samples_per_prompt 4 --train.batch_size 64 --train.micro_batch_size {} "
    "--algo.advantage.estimator group_norm"
)
FLAT = (
    "python -m openrlhf.cli.train_ppo_ray --vllm_num_engines 1 --actor_num_gpus_per_node 2 --critic_num_gpus_per_node 2 "
    "--rollout_batch_size 64 --n_samples_per_prompt 4 --train_batch_size 64 --micro_train_batch_size 8 "
    "--advantage_estimator group_norm"
)


@pytest.mark.parametrize(
    ("flags", "release", "each", "said"),
    [
        ("", "0.18.2", 8, [LAST]),
        ("", "0.18.2", 32, []),
        ("", "0.19.6", 8, []),
        ("--ds.zero_stage 2", "0.17.6", 16, [LAST]),
        ("--ds.zero_stage 3", "0.18.2", 8, []),
        ("--ds.adam_offload", "0.18.9", 8, [ENDS]),
        ("--ds.adam_offload", "0.18.9", 16, []),
        ("--ds.zero_stage 3 --ds.adam_offload", "0.18.9", 8, []),
        ("--ds.zero_stage 0", "0.19.6", 32, [ADAM]),
        ("--ds.zero_stage $STAGE", "0.18.2", 8, []),
        ("--ds.zero_stage 3 --train.enable_ema", "0.19.6", 8, [STILL]),
        ("--ds.zero_stage 3 --train.enable_ema", "", 8, [STILL]),
        ("--train.enable_ema", "0.18.2", 8, [LAST]),
        # Each backward pass is at a boundary; a note of the plan says what is lost there.
        ("--train.dynamic_batch_enable", "0.18.2", 8, []),
    ],
)
def test_of_the_flags_of_openrlhf(
    flags: str, release: str, each: int, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert warned(f"{OPENRLHF.format(each)} {flags}", release, monkeypatch, version="0.11.2") == said


@pytest.mark.parametrize(
    ("flags", "release", "said"),
    [
        ("--bf16", "0.18.2", [LAST]),
        ("--adam_offload --bf16", "0.18.9", [ENDS]),
        ("--zero_stage 3", "0.18.2", []),
        ("--zero_stage 0 --bf16", "0.18.2", [ADAM]),
        ("--zero_stage 0", "0.18.2", []),
        ("--zero_stage 3 --enable_ema", "0.18.9", [STILL]),
    ],
)
def test_of_the_flat_flags_of_openrlhf(
    flags: str, release: str, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert warned(f"{FLAT} {flags}", release, monkeypatch, version="0.9.0") == said


@pytest.mark.parametrize(
    ("stage", "offload", "dynamic", "averages", "release", "said"),
    [
        (2, False, False, False, "0.18.2", [LAST]),
        (2, True, False, False, "0.18.9", [ENDS]),
        (3, False, False, False, "0.18.2", []),
        (3, False, False, True, "0.18.2", [STILL]),
        (2, False, True, True, "0.18.2", []),
        (2, False, False, True, "0.19.6", []),
        (2, False, False, False, "", []),
    ],
)
def test_of_the_arguments_of_a_run_of_openrlhf(
    stage: int,
    offload: bool,
    dynamic: bool,
    averages: bool,
    release: str,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(of_launches, "release_here", lambda package: release)
    args: Any = SimpleNamespace(
        ds=SimpleNamespace(zero_stage=stage, adam_offload=offload),
        train=SimpleNamespace(dynamic_batch_enable=dynamic, enable_ema=averages),
    )
    schedule = plan_launch(shlex.split(OPENRLHF.format(8)), Options(rows=10_000, version="0.11.2")).schedule
    assert [fault["title"] for fault in engine_faults(args, schedule)] == said
