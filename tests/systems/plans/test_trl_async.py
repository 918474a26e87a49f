"""TRL's AsyncGRPOTrainer: what is known before the run, and what lengths and staleness decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.golden.reading import planned, read

if TYPE_CHECKING:
    from pathlib import Path

RUN = (
    "accelerate launch --num_processes 2 examples/scripts/async_grpo.py --per_device_train_batch_size 4 "
    "--gradient_accumulation_steps 2 --num_generations 8 "
)
SCRIPT = """
from trl import TrlParser
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
parser = TrlParser((ScriptArguments, AsyncGRPOConfig))
script, args = parser.parse_args_and_config()
trainer = AsyncGRPOTrainer(model=script.model, reward_funcs=reward, args=args, train_dataset=rows)
trainer.train()
"""


def test_samples_of_an_update_are_fixed_without_a_budget_of_tokens() -> None:
    schedule = read(RUN + "--token_budget 0 --max_steps 20", rows=100).schedule
    assert (schedule.samples_per_update, schedule.samples_per_microbatch, schedule.microbatches_per_update) == (
        16,
        8,
        2,
    )
    assert (schedule.prompts_per_rollout, schedule.updates, schedule.rollouts) == (2, 20, 20)
    assert (schedule.old_logprob_source, schedule.lags, schedule.ratio_one_updates) == ("engine", (0,), ())
    assert schedule.data_epochs is None


def test_tokens_decide_by_default() -> None:
    schedule = read(RUN + "--max_steps 20", rows=100).schedule
    assert (schedule.samples_per_update, schedule.samples_per_microbatch, schedule.updates) == (None, None, 20)
    assert "tokens" in schedule.not_evaluated["samples_per_update"]


def test_the_end_by_epochs_is_not_known() -> None:
    reading = read(RUN + "--num_train_epochs 2 --lr_scheduler_type cosine", rows=100)
    assert (reading.schedule.rollouts, reading.schedule.updates) == (None, None)
    assert "200 prompts" in reading.schedule.not_evaluated["updates"]
    assert reading.schedule.lr_horizon == 2 * 100 * 8 * 32 // 16
    assert any("ceiling of 3200 updates" in note.text for note in reading.notes)


def test_releases_before_1_9_worked_it_out() -> None:
    schedule = read(RUN + "--num_train_epochs 2", rows=100, version="1.4.0").schedule
    assert (schedule.updates, schedule.samples_per_update) == (100, 16)
    assert schedule.lr_horizon == 100


def test_a_script_with_the_flags_of_grpo_is_not_taken_for_grpo(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    plan = planned(f"accelerate launch --num_processes 2 {path} --num_generations 8 --max_steps 10", rows=100)
    assert plan.framework == "trl_async"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("--max_steps 5", "holds it there, and a resumed run trains all that came after it again"),
        ("--max_steps 5 --max_staleness 2", "a sample may be 3 updates old, not 2"),
        ("--max_steps 5 --weight_sync_steps 2", "a version is 2 updates"),
    ],
)
def test_what_happens_silently_is_said(more: str, says: str) -> None:
    assert any(says in note.text for note in read(RUN + more, rows=100).notes)
