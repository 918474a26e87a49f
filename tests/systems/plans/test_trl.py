"""TRL from a launch: field reports, refusals of each release, wrappers."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError, SettingError
from rlstep_hooks.planning.refusal import PlanError
from tests.golden.reading import planned, read

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("launch", "options", "updates", "per_rollout"),
    [
        # trl#3204: 4000 updates seen, 666 expected.
        ("accelerate launch --num_processes 3 -m trl.scripts.grpo --per_device_train_batch_size 4 --gradient_accumulation_steps 2 "
         "--num_generations 6 --num_train_epochs 2", {"rows": 8000}, 4000, Fraction(1)),
        # ms-swift#9261: 4 updates for each generation.
        ("trl grpo --per_device_train_batch_size 1 --gradient_accumulation_steps 8 --generation_batch_size 32 --num_generations 8 "
         "--max_steps 100", {"rows": 8000}, 100, Fraction(4)),
        # RapidFire PR#44: 384 updates.
        ("trl grpo --per_device_train_batch_size 8 --num_generations 8 --num_train_epochs 3", {"rows": 128}, 384, Fraction(1)),
        # Fractions: two rollouts for one update.
        ("trl grpo --gradient_accumulation_steps 8 --steps_per_generation 4 --max_steps 5", {"rows": 1000}, 5, Fraction(1, 2)),
    ],
)  # fmt: skip
def test_reports(launch: str, options: dict[str, int], updates: int, per_rollout: Fraction) -> None:
    schedule = read(launch, **options).schedule
    assert schedule.updates == updates
    assert schedule.updates_per_rollout == per_rollout


@pytest.mark.parametrize(
    ("options", "world_size"),
    [
        ("--num_processes 2", 2),
        # Run for real with accelerate 1.15.0: one process trains.
        ("--cpu --num_processes 2 --num_machines 1 --mixed_precision no", 1),
        ("--num-processes=2 --cpu", 1),
        ("--cpu --mpirun_hostfile hosts --num_processes 2", 2),
    ],
)
def test_accelerate_on_a_cpu_starts_one_process_but_for_mpi(options: str, world_size: int) -> None:
    schedule = read(f"accelerate launch {options} -m trl.scripts.grpo --max_steps 4", rows=100).schedule
    assert schedule is not None
    assert schedule.world_size == world_size


def test_iterations_double_the_updates() -> None:
    """CPPO#5: 14946 updates with num_iterations 2."""
    launch = "trl grpo --per_device_train_batch_size 8 --num_generations 8 --num_train_epochs 1 --num_iterations {}"
    assert read(launch.format(2), rows=7473).schedule.updates == 14946
    assert read(launch.format(1), rows=7473).schedule.updates == 7473


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("0.16.1", "The global train batch size (1 x 7) must be evenly divisible by the number of generations per prompt (6)"),
        ("0.17.0", "The effective train batch size (1 x 7 x 1) must be evenly divisible by the number of generations per prompt (6)"),
        ("0.24.0", "generation_batch_size (7) must be divisible by num_generations (6)."),
    ],
)  # fmt: skip
def test_refusals_in_the_words_of_the_release(version: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        read("trl grpo --per_device_train_batch_size 7 --num_generations 6", rows=100, version=version)
    assert message in caught.value.message
    assert "num_generations = 7" in caught.value.fix
    assert "per_device_train_batch_size = 6 or 12" in caught.value.fix


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("0.16.1", "The global eval batch size (1 x 1) must be evenly divisible by the number of generations per prompt (2)"),
        ("0.17.0", "The effective eval batch size (1 x 1) must be evenly divisible by the number of generations per prompt (2)"),
        ("0.24.0", "The global eval batch size (1 * 1) must be divisible by num_generations (2)."),
        ("1.8.0", "The global eval batch size (1 * 1) must be divisible by the number of generations used for evaluation (2)."),
    ],
)  # fmt: skip
def test_batches_of_evaluation_hold_whole_groups(version: str, message: str) -> None:
    launch = (
        "trl grpo --per_device_train_batch_size 4 --num_generations 2 --max_steps 8 --per_device_eval_batch_size {}"
    )
    with pytest.raises(PlanError) as caught:
        read(launch.format("1 --eval_strategy steps"), rows=80, version=version, world_size=1)
    assert message in caught.value.message
    assert caught.value.fix == "per_device_eval_batch_size = 2, or eval_strategy = no"
    for accepted in ("1", "2 --eval_strategy steps"):
        assert read(launch.format(accepted), rows=80, version=version, world_size=1).schedule.updates == 8


def test_releases_that_evaluate_any_batch() -> None:
    launch = "trl grpo --num_generations 8 --max_steps 8 --per_device_eval_batch_size 1 --eval_strategy steps"
    assert read(launch, rows=80, version="0.21.0", world_size=1).schedule.updates == 8
    own = "--num_generations_eval 1"
    assert read(f"{launch} {own}", rows=80, version="1.0.0", world_size=1).schedule.updates == 8


def test_old_logprobs_follow_the_release() -> None:
    launch = "trl grpo --gradient_accumulation_steps 2 --steps_per_generation 4 --max_steps 8"
    assert read(launch, rows=800).schedule.old_logprob_source == "at_rollout"
    assert read("trl grpo --max_steps 8", rows=800).schedule.old_logprob_source == "detach"


def test_rows_that_a_launch_does_not_say_are_no_stream() -> None:
    schedule = read("trl grpo --max_steps 8").schedule
    assert set(schedule.not_evaluated.values()) == {"dataset_name is not given; give --rows"}
    assert {"rows", "rollouts_per_epoch", "data_epochs", "loader_epochs"} <= set(schedule.not_evaluated)


def test_rloo_has_its_own_defaults() -> None:
    schedule = read("trl rloo --max_steps 4", rows=800).schedule
    assert (schedule.algorithm, schedule.samples_per_prompt, schedule.reference_source) == ("RLOO", 2, "at_rollout")


def test_yaml_and_python_say_the_same_as_the_command(tmp_path: Path) -> None:
    flags = "--per_device_train_batch_size 4 --gradient_accumulation_steps 4 --num_generations 8 --max_steps 20"
    command = read(f"trl grpo {flags}", rows=100)
    config = tmp_path / "grpo.yaml"
    config.write_text(
        "per_device_train_batch_size: 4\ngradient_accumulation_steps: 4\nnum_generations: 8\nmax_steps: 20\n"
    )
    script = tmp_path / "train.py"
    script.write_text(
        "from trl import GRPOConfig, GRPOTrainer\nGROUP = 8\n"
        "args = GRPOConfig(output_dir='o', per_device_train_batch_size=GROUP // 2, gradient_accumulation_steps=4,\n"
        "                  num_generations=GROUP, max_steps=20)\nGRPOTrainer(args=args)\n"
    )
    for launch in (config, script, f"trl grpo --config {config}", f"accelerate launch --num_processes 1 {script}"):
        schedule = read(launch, rows=100, world_size=1 if launch is config else None).schedule
        assert schedule == command.schedule
    with pytest.raises(LaunchError, match="how many processes train; give --world-size"):
        read(config, rows=100)


def test_an_unknown_number_of_processes_is_asked_for() -> None:
    with pytest.raises(LaunchError, match="--world-size"):
        read("accelerate launch -m trl.scripts.grpo --max_steps 4", rows=100)
    assert read("accelerate launch -m trl.scripts.grpo --max_steps 4", rows=100, world_size=2).schedule.world_size == 2


def test_a_setting_of_a_later_release_is_named() -> None:
    with pytest.raises(SettingError, match=r"came with TRL 0\.18"):
        read("trl grpo --steps_per_generation 2", rows=100, version="0.17.0")


def test_no_epoch_leaves_nothing_to_plan() -> None:
    launch = "trl grpo --per_device_train_batch_size 8 --num_generations 8 --num_train_epochs 0"
    with pytest.raises(LaunchError, match="ends before its first update"):
        read(launch, rows=80, world_size=1)
    assert read(f"{launch} --max_steps 3", rows=80, world_size=1).schedule.updates == 3


def test_a_file_that_only_generates_is_no_training(tmp_path: Path) -> None:
    """Open-R1's filters of data sets generate, and take the same names for it."""
    file = tmp_path / "filter.yaml"
    file.write_text("num_generations: 8\nmax_completion_length: 32000\npass_rate_min: 0.1\n")
    with pytest.raises(LaunchError, match="no size of a batch"):
        read(file, world_size=8)
    file.write_text("num_generations: 8\nnum_train_epochs: 1\n")
    assert read(file, world_size=8).schedule.samples_per_rollout == 64


@pytest.mark.parametrize(
    ("peft_config", "flags", "adapter"),
    [
        ("LoraConfig(r=8)", "", True),
        ("get_peft_config(model_args)", "", False),
        ("get_peft_config(model_args)", "--use_peft", True),
        ("get_peft_config(model_args)", "--use_peft false", False),
        ("None", "", False),
        ("chosen", "", False),
    ],
)
def test_a_reference_below_an_adapter_is_named_where_there_is_one(
    tmp_path: Path, peft_config: str, flags: str, adapter: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from peft import LoraConfig\nfrom trl import GRPOConfig, GRPOTrainer, ModelConfig, TrlParser, get_peft_config\n"
        "args, model_args = TrlParser((GRPOConfig, ModelConfig)).parse_args_and_config()\n"
        f"GRPOTrainer(model='m', args=args, peft_config={peft_config}).train()\n"
    )
    sizes = "--per_device_train_batch_size 8 --num_generations 8 --beta 0.04 --max_steps 20"
    notes = read(f"python {script} {sizes} {flags}", rows=100).notes
    assert any("LoRA adapter switched off" in note.text for note in notes) is adapter


ALONE = "python -m trl.scripts.grpo --per_device_train_batch_size {size} --num_generations 4 --max_steps 8"


@pytest.mark.parametrize(
    ("devices", "assumed"),
    [
        ("CUDA_VISIBLE_DEVICES=3 ", False),
        ("CUDA_VISIBLE_DEVICES=0,1 ", True),
        ("CUDA_VISIBLE_DEVICES=$GPU ", True),
        ("", True),
    ],
)
def test_a_program_that_sees_one_device_trains_in_one_process(tmp_path: Path, devices: str, assumed: bool) -> None:
    (tmp_path / "train.sh").write_text(f"{devices}{ALONE.format(size=8)}\n")
    notes = planned(tmp_path / "train.sh").notes
    assert any("1 process: the launch does not say" in note.text for note in notes) is assumed


def test_sizes_that_one_visible_device_does_not_fill_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(f'export CUDA_VISIBLE_DEVICES="${{CUDA_VISIBLE_DEVICES:-0}}"\n{ALONE.format(size=2)}\n')
    assert "must be divisible by num_generations" in str(planned(script).findings[0].observed)
    assert planned(script, world_size=2).schedule is not None
    script.write_text(f"{ALONE.format(size=2)}\n")
    with pytest.raises(LaunchError, match="does not say on how many processes"):
        planned(script)
