"""Unsloth: TRL with other defaults, a batch that it raises, and old log-probs wherever vLLM generates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from tests.golden.reading import planned, read

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """\
from unsloth import FastLanguageModel
from trl import {trainer}Config, {trainer}Trainer
model, tokenizer = FastLanguageModel.from_pretrained(model_name="m", fast_inference={fast})
args = {trainer}Config({sizes})
trainer = {trainer}Trainer(model=model, args=args, train_dataset=rows)
trainer.train()
"""


def script(folder: Path, sizes: str, *, fast: bool = False, trainer: str = "GRPO") -> Path:
    file = folder / "train.py"
    file.write_text(SCRIPT.format(sizes=sizes, fast=fast, trainer=trainer))
    return file


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        # its own defaults: 4 samples x 2 micro-batches, 8 of a prompt
        ("max_steps=100", (1, 8, 4, 2)),
        # its notebooks: 1 x 1 is no multiple of 6, so the batch becomes 6; 1 x 4 none of 8: 8 x 4
        (
            "per_device_train_batch_size=1, gradient_accumulation_steps=1, num_generations=6, max_steps=250",
            (1, 6, 6, 1),
        ),
        (
            "per_device_train_batch_size=1, gradient_accumulation_steps=4, num_generations=8, max_steps=250",
            (4, 8, 8, 4),
        ),
        (
            "per_device_train_batch_size=1, gradient_accumulation_steps=4, num_generations=4, max_steps=250",
            (1, 4, 1, 4),
        ),
    ],
)
def test_the_batch_is_raised_where_the_groups_do_not_fit(tmp_path: Path, sizes: str, expected: tuple[int, ...]) -> None:
    plan = planned(script(tmp_path, sizes), rows=10_000)
    schedule = read(script(tmp_path, sizes), rows=10_000).schedule
    assert (schedule.framework, schedule.version) == ("Unsloth on TRL", "0.24.0")
    prompts, samples, micro, window = expected
    assert (schedule.prompts_per_rollout, schedule.samples_per_prompt) == (prompts, samples)
    assert (schedule.samples_per_microbatch, schedule.microbatches_per_update) == (micro, window)
    raised = any(note.kind == "grows" and "Unsloth makes it" in note.text for note in plan.notes)
    assert raised == (micro not in (1, 4))


def test_a_size_of_the_rollout_keeps_the_batch(tmp_path: Path) -> None:
    schedule = read(
        script(tmp_path, "per_device_train_batch_size=2, steps_per_generation=8, num_generations=8")
    ).schedule
    assert (schedule.samples_per_microbatch, schedule.samples_per_rollout) == (2, 16)


def test_old_log_probs_are_computed_with_vllm_alone(tmp_path: Path) -> None:
    sizes = "max_steps=100"
    assert read(script(tmp_path, sizes)).schedule.old_logprob_source == "detach"
    assert read(script(tmp_path, sizes, fast=True)).schedule.old_logprob_source == "at_rollout"


def test_its_other_trainers_and_trl_itself(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="RLOOTrainer is not read"):
        planned(script(tmp_path, "max_steps=1", trainer="RLOO"))
    alone = tmp_path / "trl.py"
    alone.write_text("from trl import GRPOConfig, GRPOTrainer\nGRPOTrainer(args=GRPOConfig(max_steps=1))\n")
    assert planned(alone).framework == "trl"


def test_the_release_of_trl_that_the_checkout_installs_counts(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("unsloth\ntrl==0.22.2\n")
    assert read(script(tmp_path, "max_steps=100")).schedule.version == "0.22.2"


@pytest.mark.parametrize(
    "pin",
    [
        "trl==0.15.2",
        "trl>=0.28.0",
        "git+https://github.com/huggingface/trl.git@e95f9fb74a3c3647b86f251b7e230ec51c64b72b",
    ],
)
def test_a_release_of_trl_that_unsloth_does_not_take_is_asked_about(tmp_path: Path, pin: str) -> None:
    (tmp_path / "requirements.txt").write_text(f"unsloth\n{pin}\n")
    with pytest.raises(LaunchError, match=r"which is not known: 0\.18\.2 to before 0\.25 are"):
        planned(script(tmp_path, "max_steps=100"))
