"""verifiers: GRPOTrainer of 0.1.2 to 0.1.6 and RLTrainer since. The numbers are those of its examples, worked out by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.refusal import PlanError
from tests.golden.reading import planned, read

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.schedule import Schedule

SCRIPT = """\
import verifiers as vf
env = vf.load_environment(env_id="wordle")
model, tokenizer = vf.get_model_and_tokenizer("m")
args = vf.grpo_defaults(run_name="wordle")
{more}
trainer = vf.GRPOTrainer(model=model, processing_class=tokenizer, env=env, args=args)
trainer.train()
"""
WORDLE = """\
args.per_device_train_batch_size = 8
args.num_generations = 16
args.gradient_accumulation_steps = 8
args.max_steps = 200
args.beta = 0.0
"""
TOML = """\
model = "Qwen/Qwen2.5-1.5B-Instruct"
[env]
id = "gsm8k"
[inference]
gpus = 1
[trainer]
gpus = {gpus}
[trainer.args]
micro_batch_size = 12
rollouts_per_example = 12
batch_size = {batch}
max_steps = 100
"""


def grpo(folder: Path, more: str = "", launcher: str = "python", rows: int | None = 2000) -> Schedule:
    (folder / "train.py").write_text(SCRIPT.format(more=more))
    return read(f"{launcher} {folder}/train.py", rows=rows).schedule


def test_the_sizes_of_its_defaults_and_of_its_examples(tmp_path: Path) -> None:
    default = grpo(tmp_path)
    assert (default.framework, default.prompts_per_rollout, default.samples_per_rollout) == (
        "verifiers GRPOTrainer",
        4,
        32,
    )
    assert (default.rollouts, default.updates, default.max_age, default.reference_source) == (500, 500, 1, "at_update")
    wordle = grpo(tmp_path, WORDLE)
    assert (wordle.prompts_per_rollout, wordle.samples_per_prompt, wordle.samples_per_rollout) == (4, 16, 64)
    assert (wordle.microbatches_per_update, wordle.rollouts, wordle.lr_horizon) == (8, 200, 200)
    assert (wordle.data_epochs, wordle.reference_source) == (Fraction(200 * 4, 2000), "none")


def test_passes_over_a_rollout_and_batches_ahead(tmp_path: Path) -> None:
    schedule = grpo(tmp_path, WORDLE + "args.num_iterations = 3\nargs.num_batches_ahead = 0\n")
    assert (schedule.updates_per_rollout, schedule.updates, schedule.rollouts, schedule.max_age) == (3, 200, 67, 0)
    assert schedule.lags == (0, 1, 2)


def test_processes_that_read_the_same_rows(tmp_path: Path) -> None:
    """`accelerator.prepare` gives the wrapped loader back as it is."""
    schedule = grpo(tmp_path, WORDLE, "accelerate launch --num-processes 2")
    assert (schedule.samples_per_rollout, schedule.data_epochs) == (128, None)
    assert "the same rows" in schedule.not_evaluated["data_epochs"]


def test_epochs_are_steps_of_one_process(tmp_path: Path) -> None:
    schedule = grpo(tmp_path, WORDLE + "args.max_steps = -1\nargs.num_train_epochs = 2\n")
    assert (schedule.rollouts_per_epoch, schedule.rollouts, schedule.updates) == (500, 1000, 1000)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="must be evenly divisible by the number of generations"):
        grpo(tmp_path, WORDLE + "args.num_generations = 24\n")


def toml(folder: Path, batch: int = 144, gpus: int = 1) -> Path:
    file = folder / "run.toml"
    file.write_text(TOML.format(batch=batch, gpus=gpus))
    return file


def test_the_rl_trainer_of_its_configurations(tmp_path: Path) -> None:
    for launch in (toml(tmp_path), f"uv run vf-rl @ {toml(tmp_path)}"):
        schedule = read(launch, rows=2000).schedule
        assert (schedule.framework, schedule.prompts_per_rollout, schedule.samples_per_rollout) == (
            "verifiers RLTrainer",
            12,
            144,
        )
        assert (schedule.updates_per_rollout, schedule.updates, schedule.max_age) == (1, 100, 1)
        assert schedule.old_logprob_source == "engine"
        assert "each turn" in schedule.not_evaluated["samples_per_microbatch"]
    assert read(toml(tmp_path), version="0.1.7").schedule.microbatches_per_update == 12


def test_what_the_rl_trainer_refuses_and_ignores(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="batch_size must be divisible by"):
        read(toml(tmp_path, batch=150))
    notes = planned(toml(tmp_path, gpus=2)).notes
    assert any("starts one process of vf-train" in note.text for note in notes)


def test_trls_trainer_is_another(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from trl import GRPOConfig, GRPOTrainer\nGRPOTrainer(args=GRPOConfig(num_generations=8))\n"
    )
    assert planned(tmp_path / "train.py").framework == "trl"


def test_a_configuration_that_is_not_in_the_file_is_not_planned(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from verifiers import GRPOTrainer\ntrainer = GRPOTrainer(args=None)\n")
    with pytest.raises(LaunchError, match="is not in this file"):
        planned(tmp_path / "train.py")


@pytest.mark.parametrize(("steps", "every"), [("0", None), ("0.1", None), ("100", 100)])
def test_checkpoints_may_be_off_or_a_part_of_the_run(steps: str, every: int | None, tmp_path: Path) -> None:
    """`state.save_steps > 0 and ...`, and parts of the run below 1 (transformers trainer_callback.py, training_args.py)."""
    (tmp_path / "train.py").write_text(SCRIPT.format(more=f"args.save_steps = {steps}"))
    assert read(f"python {tmp_path}/train.py", rows=2000).facts.get("save_every") == every
    file = toml(tmp_path)
    file.write_text(f"{file.read_text()}save_steps = {steps}\n")
    assert read(f"vf-rl @ {file}", rows=2000).facts.get("save_every") == every
