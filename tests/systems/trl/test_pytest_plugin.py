"""The pytest plugin with real training: a session of its own, with healthy and faulty runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks import assert_schedule
from rlstep_hooks.testing.tiny_trl import tiny_config

if TYPE_CHECKING:
    from pathlib import Path

pytest_plugins = "pytester"

TESTS = """
import pytest
import torch
from rlstep_hooks import StepAuditError
from rlstep_hooks.testing.tiny_trl import tiny_trainer
from rlstep_hooks.testing.trl_faults import FAULTS

torch.set_num_threads(1)

@pytest.fixture
def trainer(tmp_path, step_audit):
    return tiny_trainer(tmp_path, callbacks=[step_audit], max_steps=4, num_iterations=2)

@pytest.mark.rlstep(expect_updates=4, expect_rollouts=2, expect_samples=8, strict=True)
def test_healthy(trainer, step_audit):
    trainer.train()
    assert step_audit.report.verdict == "PASS"

def test_faulty(trainer):
    FAULTS["regenerate_every_step"](trainer)
    trainer.train()

def test_faulty_and_never_noticed(trainer):
    FAULTS["recompute_old_log_probs"](trainer)
    with pytest.raises(RuntimeError):
        trainer.train()

@pytest.mark.rlstep(expect_updates=5)
def test_other_counts(trainer):
    trainer.train()

def test_never_trained(trainer):
    pass
"""


def test_a_session_with_real_training(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-W", "ignore", timeout=300)
    result.assert_outcomes(passed=1, failed=4)
    result.stdout.fnmatch_lines(
        [
            "*_ test_faulty _*",
            "E * rlstep_hooks.judge.report.StepAuditError: RLS201 Rollout too early (data epoch 0, rollout 1, *",
            "*Captured rlstep call*",
            "FAIL *",
            "ERROR RLS201 *",
            "*_ test_faulty_and_never_noticed _*",
            "rlstep: the audit of this run failed",
            "ERROR RLS30* *",
            "*_ test_other_counts _*",
            "  updates: expected 5, observed 4",
            "*_ test_never_trained _*",
            "rlstep: step_audit recorded nothing: no training has called this audit*",
        ]
    )


def test_a_live_configuration_is_asserted(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, gradient_accumulation_steps=2, num_iterations=2, num_train_epochs=1)
    assert_schedule(config, rows=36, reuse_epochs=2, samples_per_update=8)
    with pytest.raises(AssertionError, match=r"reuse_epochs +3 +2\n") as failed:
        assert_schedule(config, rows=36, reuse_epochs=3)
    assert "num_iterations = 2" in str(failed.value)
    with pytest.raises(AssertionError, match="RLS510"):
        assert_schedule(config, rows=1)
