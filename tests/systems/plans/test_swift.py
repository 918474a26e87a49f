"""ms-swift's GRPO: fractions of an update, its own old log-probs, its own checks; Megatron."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.engine.launches import plan_launch
from tests.golden.reading import planned, read

if TYPE_CHECKING:
    from pathlib import Path

HF = "swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-7B-Instruct --dataset d --num_generations 8 "
MEGATRON = "NPROC_PER_NODE=8 megatron rlhf --rlhf_type grpo --num_generations 8 --tensor_model_parallel_size 2 "


def test_fraction_of_an_update() -> None:
    """Golden: GA=8, steps_per_generation=4."""
    schedule = read(
        HF + "--per_device_train_batch_size 2 --gradient_accumulation_steps 8 --steps_per_generation 4", rows=800
    ).schedule
    assert schedule.updates_per_rollout == Fraction(1, 2)
    assert schedule.old_logprob_source == "at_rollout"
    assert schedule.samples_per_rollout == 8
    assert schedule.lags == (0,)


def test_processes_of_the_environment() -> None:
    schedule = read("NPROC_PER_NODE=4 NNODES=2 " + HF + "--per_device_train_batch_size 4", rows=1000).schedule
    assert schedule.world_size == 8
    assert (schedule.samples_per_rollout, schedule.prompts_per_rollout) == (32, 4)
    assert read(HF + "--per_device_train_batch_size 8", rows=10).schedule.world_size == 1


def test_rows_that_are_not_shuffled_are_dropped_in_each_pass() -> None:
    """A launch that turns shuffling off never trains the last rows; of ms-swift 3 its order was not read."""
    launch = HF + "--per_device_train_batch_size 4 --gradient_accumulation_steps 4 --dataset_shuffle "
    shuffled, ordered = (read(launch + word, rows=103, version="4.6.0").schedule for word in ("true", "false"))
    assert (shuffled.rows_dropped_per_epoch, shuffled.rows_reshuffled) == (1, True)
    assert (ordered.rows_dropped_per_epoch, ordered.rows_reshuffled) == (1, False)
    third = read(launch + "false", rows=103, version="3.8.0").schedule
    assert "was not read" in third.not_evaluated["rows_reshuffled"]


def test_batch_counts_completions() -> None:
    """ms-swift#3912: 8 000 rows; steps grow with num_generations."""
    launch = (
        "NPROC_PER_NODE=8 "
        + HF
        + "--per_device_train_batch_size 4 --gradient_accumulation_steps 2 --num_train_epochs 1"
    )
    reading = read(launch, rows=8000)
    assert reading.schedule.prompts_per_rollout == 8
    assert (reading.schedule.rollouts, reading.schedule.updates) == (1000, 1000)
    assert any(note.kind == "unit" for note in reading.notes)


def test_reported_generation_batch() -> None:
    """ms-swift#9261: generation_batch_size 32, batch 1, GA 8: 4 updates of each rollout."""
    launch = HF + "--per_device_train_batch_size 1 --gradient_accumulation_steps 8 --generation_batch_size 32"
    schedule = read(launch, rows=400).schedule
    assert schedule.updates_per_rollout == 4
    assert schedule.old_logprob_source == "at_rollout"
    assert schedule.ratio_one_updates == (1,)


def test_old_logprobs_are_not_those_of_trl() -> None:
    """GA=8, steps_per_generation=4, two iterations: TRL detaches, ms-swift computes them."""
    sizes = (
        "--per_device_train_batch_size 2 --gradient_accumulation_steps 8 --steps_per_generation 4 --num_iterations 2"
    )
    schedule = read(HF + sizes, rows=800).schedule
    assert schedule.old_logprob_source == "at_rollout"
    assert schedule.updates_per_rollout == 1
    trl = read("trl grpo --num_generations 8 " + sizes, rows=800).schedule
    assert trl.old_logprob_source == "detach"


@pytest.mark.parametrize(
    ("version", "source"), [("3.9.0", "detach"), ("3.11.0", "at_rollout"), ("4.6.0", "at_rollout")]
)
def test_old_logprobs_of_one_aligned_pass(version: str, source: str) -> None:
    """Since 3.11 they are always computed; before only where `old_policy()` says so."""
    schedule = read(HF + "--per_device_train_batch_size 8", rows=80, version=version).schedule
    assert schedule.old_logprob_source == source
    assert schedule.ratio_one_updates == (1,)


def test_rows_on_both_sides() -> None:
    launch = HF + "--per_device_train_batch_size 16 --num_train_epochs 1"
    assert read(launch, rows=100).schedule.rows_dropped_per_epoch == 0
    assert read(launch, rows=101).schedule.rows_dropped_per_epoch == 1
    assert read(launch, rows=101).schedule.rollouts == 50


@pytest.mark.parametrize(
    ("version", "more", "message", "fix"),
    [
        (
            "4.6.0",
            "--per_device_train_batch_size 6",
            "generation_batch_size (6) must be evenly divisible by num_generations (8). Valid values: [2, 3, 6].",
            "generation_batch_size = 24",
        ),
        (
            "3.9.0",
            "--per_device_train_batch_size 6",
            "The effective train batch size (1 x 6 x 1) must be evenly divisible",
            "generation_batch_size = 24",
        ),
        (
            "4.6.0",
            "--per_device_train_batch_size 8 --generation_batch_size 20",
            "generation_batch_size (20) must be divisible by the global batch size (8).",
            "16 or 24",
        ),
        (
            "4.6.0",
            "--per_device_train_batch_size 8 --generation_batch_size 32 --steps_per_generation 2",
            "must equal per_device_train_batch_size * world_size * steps_per_generation = 16.",
            "16",
        ),
        ("4.6.0", "--num_generations 1", "num_generations must be greater than 1 for GRPO", "2 or more"),
        ("3.9.0", "--num_generations 1", "GRPO requires at least 2 generations", "2 or more"),
    ],
)
def test_refusals(version: str, more: str, message: str, fix: str) -> None:
    with pytest.raises(PlanError) as caught:
        read(HF + more, rows=100, version=version)
    assert message in caught.value.message
    assert fix in caught.value.fix


def test_third_release_ignores_one_of_two_sizes() -> None:
    reading = read(
        HF + "--per_device_train_batch_size 8 --generation_batch_size 32 --steps_per_generation 2",
        rows=100,
        version="3.9.0",
    )
    assert reading.schedule.samples_per_rollout == 32
    assert any(note.kind == "ignores" and "steps_per_generation = 2" in note.text for note in reading.notes)


def test_other_trainers_and_sequence_parallel() -> None:
    with pytest.raises(LaunchError, match="only grpo is read"):
        read("swift rlhf --rlhf_type dpo")
    with pytest.raises(LaunchError, match="sequence_parallel_size"):
        read(HF + "--sequence_parallel_size 2")


def test_megatron() -> None:
    reading = read(
        MEGATRON + "--global_batch_size 128 --micro_batch_size 4 --steps_per_generation 2 --num_train_epochs 1",
        rows=1000,
    )
    schedule = reading.schedule
    assert schedule.world_size == 4
    assert (schedule.samples_per_rollout, schedule.prompts_per_rollout) == (256, 32)
    assert (schedule.updates_per_rollout, schedule.samples_per_update) == (2, 128)
    assert (schedule.updates, schedule.rollouts) == (62, 31)  # 992 prompts x 8 / 128
    assert schedule.old_logprob_source == "at_rollout"


def test_megatron_generates_for_each_update_unless_told() -> None:
    schedule = read(MEGATRON + "--global_batch_size 64 --train_iters 100").schedule
    assert (schedule.updates_per_rollout, schedule.rollouts, schedule.updates) == (1, 100, 100)
    open_end = read(MEGATRON + "--global_batch_size 64").schedule
    assert open_end.rollouts is None
    assert "train_iters" in open_end.not_evaluated["rollouts"]


@pytest.mark.parametrize(
    ("more", "message", "fix"),
    [
        ("60", "generation_batch_size (60) must be divisible by num_generations (8).", "32 or 64"),
        ("48", "num_rollout_prompt (6)", "32 or 64"),
        ("64 --micro_batch_size 4", "Per-device rollout prompt count (2)", "128"),
        ("64 --generation_batch_size 96", "(96) must be divisible by global_batch_size (64)", "64 or 128"),
        ("64 --generation_batch_size 96 --steps_per_generation 2", "* steps_per_generation (2) = 128.", "128"),
    ],
)
def test_megatron_refusals(more: str, message: str, fix: str) -> None:
    with pytest.raises(PlanError) as caught:
        read(MEGATRON + "--global_batch_size " + more, rows=100)
    assert message in caught.value.message
    assert fix in caught.value.fix
    assert planned(MEGATRON + "--global_batch_size " + more, rows=100).schedule is None


def test_megatron_ignores_iterations() -> None:
    reading = read(MEGATRON + "--global_batch_size 64 --num_iterations 3 --train_iters 10")
    assert reading.schedule.updates_per_rollout == 1
    assert any(note.kind == "ignores" for note in reading.notes)


def test_no_epoch_is_no_update() -> None:
    launch = HF + "--per_device_train_batch_size 16 --num_train_epochs {}"
    assert [read(launch.format(epochs), rows=80, world_size=1).schedule.updates == 0 for epochs in ("0", "1")] == [
        True,
        False,
    ]


def test_a_python_file_may_make_the_arguments(tmp_path: Path) -> None:
    made = "RLHFArguments(rlhf_type='{kind}', num_generations=4, per_device_train_batch_size=2, gradient_accumulation_steps=4)"
    text = f"from swift.llm import RLHFArguments, rlhf_main\nrlhf_main({made})\n"
    file = tmp_path / "train.py"
    file.write_text(text.format(kind="grpo"))
    plan = plan_launch([str(file)], Options(rows=1000, world_size=1))
    assert plan.framework == "swift"
    assert plan.schedule is not None
    assert (plan.schedule.samples_per_rollout, plan.schedule.updates) == (8, 1500)
    file.write_text(text.format(kind="dpo"))
    with pytest.raises(LaunchError, match="only grpo is read"):
        plan_launch([str(file)], Options(rows=1000, world_size=1))


@pytest.mark.parametrize(
    ("release", "settings", "share"),
    [
        ("3.3.0", "", "1/100"),
        ("3.3.0", "--split_dataset_ratio 0", ""),
        ("3.3.0", "--val_dataset other.jsonl", ""),
        ("4.6.0", "", ""),
        ("4.6.0", "--split_dataset_ratio 0.05", "1/20"),
    ],
)
def test_rows_that_are_kept_for_validation_are_not_trained_on(release: str, settings: str, share: str) -> None:
    notes = read(f"{HF}--per_device_train_batch_size 8 {settings}", rows=512, version=release).notes
    said = [note.text for note in notes if "split_dataset_ratio" in note.text]
    assert [share in text for text in said] == ([True] if share else [])


def test_a_setting_that_only_newer_releases_have() -> None:
    """What ms-swift 3 calls `train_type` is `tuner_type` since 4.0."""
    launch = HF + "--per_device_train_batch_size 8 --tuner_type lora"
    for version, refuses in (("3.12.6", True), ("4.0.4", False), ("4.6.0", False)):
        findings = planned(launch, rows=800, version=version).findings
        assert [each.fix.partition(";")[0] for each in findings if each.severity == "error"] == [
            "write --train_type"
        ] * refuses
    assert planned(launch, rows=800).version == "4.6.0"


def test_a_setting_that_newer_releases_took_away() -> None:
    """ms-swift 4.0 has `train_type` for scripts of 3; 4.1 does not have it, and ends the run."""
    launch = HF + "--per_device_train_batch_size 8 --train_type lora"
    plan = planned(launch, rows=800)
    assert plan.version == "4.0.4"
    assert any("the newest release that takes train_type" in note.text for note in plan.notes)
    assert not [finding for finding in plan.findings if finding.severity == "error"]
    refused = planned(launch, rows=800, version="4.6.0")
    (finding,) = (each for each in refused.findings if each.severity == "error")
    assert "remaining_argv" in finding.observed
    assert "--tuner_type" in finding.fix
    assert not [each for each in planned(launch, rows=800, version="3.9.3").findings if each.severity == "error"]
