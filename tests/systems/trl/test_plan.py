"""Plans of live configurations and trainers."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks import plan
from rlstep_hooks.testing.tiny_trl import tiny_config
from tests.systems.trl.conftest import RELEASE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_a_live_config(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, gradient_accumulation_steps=2, num_iterations=2, num_train_epochs=1)
    schedule = plan(config, rows=36)
    assert (schedule.framework, schedule.version, schedule.algorithm) == ("TRL", str(RELEASE), "GRPO")
    assert (schedule.samples_per_prompt, schedule.samples_per_update, schedule.reuse_epochs) == (4, 8, 2)
    assert schedule.updates == 36
    assert schedule.data_epochs == 1
    assert schedule.lags == (0, 1)
    assert schedule.settings["num_iterations"] == 2
    if RELEASE.release < (0, 17):
        assert schedule.updates_per_rollout == 1  # one generation for each micro-batch, trained twice
    else:
        assert schedule.updates_per_rollout == 2
        assert schedule.rollouts == 18


def test_several_rollouts_for_one_update(tmp_path: Path) -> None:
    if RELEASE.release < (0, 18):
        pytest.skip("steps_per_generation came with 0.18")
    config = tiny_config(tmp_path, gradient_accumulation_steps=4, steps_per_generation=1, num_train_epochs=1)
    schedule = plan(config, rows=36)
    assert schedule.updates_per_rollout == Fraction(1, 4)
    assert (schedule.rollouts, schedule.updates) == (36, 9)


def test_rows_and_processes_complete_a_config(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, gradient_accumulation_steps=2, num_train_epochs=1)
    unknown = plan(config)
    assert unknown.updates is None
    assert unknown.not_evaluated["updates"]
    assert plan(config, rows=36, world_size=2).updates == 9


def test_a_live_trainer(build: Callable[..., Any]) -> None:
    trainer, audit = build(max_steps=2)
    assert plan(trainer).rows == 36
    trainer.train()
    assert audit.report.schedule == plan(trainer)


def test_an_rloo_config(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, algorithm="RLOO") if RELEASE.release >= (0, 22) else None
    if config is None:  # before, RLOOConfig belongs to another trainer, with another meaning of every size
        from trl import RLOOConfig

        with pytest.raises(TypeError, match="no system knows RLOOConfig"):
            plan(RLOOConfig(output_dir=str(tmp_path), use_cpu=True, report_to=[]))
        return
    schedule = plan(config, rows=36)
    assert (schedule.algorithm, schedule.old_logprob_source) == ("RLOO", "at_rollout")


def test_what_is_no_config_is_named() -> None:
    with pytest.raises(TypeError, match="no system knows dict; objects of these are known: "):
        plan({"per_device_train_batch_size": 4})
