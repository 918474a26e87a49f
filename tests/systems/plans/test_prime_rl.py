"""prime-rl: golden case, batches, ages, schedules of the rate, refusals."""

from __future__ import annotations

import sys
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import SettingError
from rlstep_hooks.planning.refusal import PlanError
from tests.golden.reading import planned, read

if TYPE_CHECKING:
    from pathlib import Path

RL = "uv run rl --orchestrator.train.source.0.name gsm8k --max-steps 100 "


def test_default() -> None:
    """golden.json: prime-rl default."""
    schedule = read("uv run rl --max-steps 20").schedule
    assert (schedule.samples_per_rollout, schedule.samples_per_prompt) == (128, 1)
    assert (schedule.updates_per_rollout, schedule.rollouts, schedule.updates) == (1, 20, 20)
    assert schedule.max_age == 8
    assert (schedule.old_logprob_source, schedule.lags, schedule.ratio_one_updates) == ("engine", (0,), ())


@pytest.mark.skipif(sys.version_info < (3, 11), reason="TOML needs tomllib of Python 3.11")
def test_example_file(tmp_path: Path) -> None:
    """configs/basic/reverse-text/rl.toml."""
    path = tmp_path / "rl.toml"
    path.write_text(
        "max_steps = 20\nseq_len = 2048\n[deployment]\nnum_train_gpus = 2\n[orchestrator]\nbatch_size = 128\ngroup_size = 16\n"
        '[[orchestrator.train.source]]\nname = "reverse-text"\n[trainer.optim]\nlr = 3e-6\n[ckpt]\ninterval = 10\n'
    )
    reading = read(f"uv run rl @ {path}")
    assert (reading.schedule.prompts_per_rollout, reading.schedule.samples_per_prompt) == (8, 16)
    assert (reading.schedule.updates, reading.schedule.world_size) == (20, 2)
    assert reading.facts["save_every"] == 10
    assert read(f"uv run rl @ {path} --max-steps 30").schedule.updates == 30
    assert read(path).schedule.updates == 20


def test_the_orchestrator_on_its_own() -> None:
    words = "uv run orchestrator --batch-size 64 --group-size 4 --orchestrator.max-steps 10 --max-off-policy-steps 2"
    schedule = read(words).schedule
    assert (schedule.prompts_per_rollout, schedule.updates, schedule.max_age) == (16, 10, 2)


def test_older_name_of_the_group() -> None:
    reading = read(RL + "--orchestrator.rollouts-per-example 16")
    assert reading.schedule.prompts_per_rollout == 8
    assert [note.kind for note in reading.notes] == ["unit", "drops", "assumes"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="TOML needs tomllib of Python 3.11")
def test_group_sizes_of_sources(tmp_path: Path) -> None:
    path = tmp_path / "rl.toml"
    head = "max_steps = 5\n[orchestrator]\nbatch_size = 100\ngroup_size = 4\n"
    path.write_text(head + "[[orchestrator.train.source]]\ngroup_size = 8\n")
    schedule = read(f"uv run rl @ {path}").schedule
    # The condition holds for the common size only: a batch may end within a group.
    assert schedule.prompts_per_rollout == Fraction(25, 2)
    path.write_text(head + "[[orchestrator.train.source]]\ngroup_size = 8\n[[orchestrator.train.source]]\n")
    with pytest.raises(SettingError, match=r"several group sizes \(4, 8\)"):
        read(f"uv run rl @ {path}")
    path.write_text(head + '[[orchestrator.train.source]]\ngroup_size = "many"\n')
    with pytest.raises(SettingError, match="not a whole number"):
        read(f"uv run rl @ {path}")


def test_without_an_end() -> None:
    schedule = read("uv run rl --orchestrator.batch-size 64").schedule
    assert schedule.rollouts is None
    assert schedule.not_evaluated["updates"] == "the run has no end"


def test_rows_may_be_dropped_and_replaced() -> None:
    schedule = read(RL, rows=1000).schedule
    assert (schedule.rows, schedule.rows_dropped_per_epoch, schedule.data_epochs) == (1000, 0, None)
    assert schedule.rows_bound == "data_dependent"


def test_processes() -> None:
    assert read(RL + "--deployment.num-train-gpus 6 --trainer.model.cp 2").schedule.world_size == 3
    assert read(RL + "--deployment.type multi_node --deployment.num-train-nodes 2").schedule.world_size == 16


@pytest.mark.parametrize(
    ("settings", "constant", "warmup"),
    [
        ("", True, 0),
        ("--trainer.scheduler.type linear", False, 10),
        ("--trainer.scheduler.type linear --trainer.scheduler.decay-steps 0", True, 10),
        ("--trainer.scheduler.type cosine --trainer.scheduler.warmup-steps 3", False, 3),
    ],
)
def test_schedule_of_the_rate(settings: str, constant: bool, warmup: int) -> None:
    reading = read(RL + settings)
    assert (reading.facts["lr_constant"], reading.facts["lr_warmup"]) == (constant, warmup)
    assert (reading.schedule.lr_ticks, reading.schedule.lr_horizon) == (100, 100)


@pytest.mark.parametrize(
    ("words", "message", "fix"),
    [
        (
            "uv run rl --orchestrator.group-size 12",
            "Batch size must be divisible by the number of samples per problem",
            "120 or 132",
        ),
        (
            "uv run rl --orchestrator.batch-size 8 --orchestrator.token-batch-size 9",
            "Set exactly one of batch_size or",
            "no token",
        ),
        (
            "uv run rl --trainer.max-steps 5 --orchestrator.max-steps 6",
            "Trainer max steps (5) and orchestrator max steps (6)",
            "5",
        ),
        (
            "uv run rl --trainer.scheduler.type cosine",
            "Must specify max_steps when using a cosine scheduler",
            "max_steps",
        ),
        (
            "uv run rl --trainer.scheduler.type linear",
            "Must specify max_steps when using a linear scheduler",
            "max_steps",
        ),
        (
            "uv run rl --trainer.scheduler.type cosine --max-steps 10",
            "warmup_steps (10) must be less than max_steps (10)",
            "9 or",
        ),
        (
            "uv run rl --trainer.scheduler.type linear --max-steps 19",
            "warmup_steps (10) + decay_steps (10) must not exceed",
            "20",
        ),
        (
            "uv run rl --trainer.scheduler.type linear --trainer.scheduler.warmup-steps 0 --trainer.scheduler.decay-steps 0",
            "Linear scheduler requires",
            "constant",
        ),
    ],
)
def test_refusals(words: str, message: str, fix: str) -> None:
    with pytest.raises(PlanError) as caught:
        read(words)
    assert message in caught.value.message
    assert fix in caught.value.fix
    assert [finding.code for finding in planned(words).findings] == ["RLS110"]


def test_what_cannot_be_planned() -> None:
    with pytest.raises(SettingError, match="token_batch_size counts tokens"):
        read(RL + "--orchestrator.token-batch-size 100000")
    with pytest.raises(SettingError, match="--orchestrator @ FILE is not read"):
        read("uv run rl --trainer @ t.toml --orchestrator @ o.toml")
