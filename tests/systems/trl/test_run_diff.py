"""Recorded runs of real training compared: two healthy ones, a faulty one, a launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.judge.run_diff.two_runs import compare_runs
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.engine.launches import plan_launch
from rlstep_hooks.testing.tiny_trl import tiny_trainer
from rlstep_hooks.testing.trl_faults import FAULTS
from tests.reports import compare_with_plan, recorded_run
from tests.systems.trl.conftest import RELEASE

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.judge.run_diff.recorded import RecordedRun

SETTINGS: dict[str, Any] = {"max_steps": 4, "num_iterations": 2, "gradient_accumulation_steps": 2}


def recorded(folder: Path, fault: str = "", **settings: Any) -> RecordedRun:
    """A real run, healthy or with a fault, as its record tells it."""
    audit = StepAuditCallback(log_dir=folder / "log", listeners=())
    trainer = tiny_trainer(folder / "out", callbacks=[audit], **(SETTINGS | settings))
    if fault:
        FAULTS[fault](trainer)
    trainer.train()
    return recorded_run(str(folder / "log"))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return recorded(tmp_path_factory.mktemp("healthy"))


def test_healthy_runs_do_not_part_whatever_their_seed(healthy: RecordedRun, tmp_path: Path) -> None:
    same = compare_runs(healthy, recorded(tmp_path / "same"))
    assert (same.outcome, same.parting, same.numbers, same.settings) == ("same", None, (), {})
    other = compare_runs(healthy, recorded(tmp_path / "other", seed=8, learning_rate=2e-2))
    assert (other.outcome, other.parting) == ("same", None)
    assert "learning rate" in {found.name for found in other.numbers}
    assert other.settings == {"learning_rate": (0.01, 0.02)}


@pytest.mark.parametrize("fault", ["regenerate_every_step", "recompute_old_log_probs"])
def test_a_faulty_run_parts_where_its_fault_begins(fault: str, healthy: RecordedRun, tmp_path: Path) -> None:
    broken = recorded(tmp_path, fault)
    difference = compare_runs(healthy, broken)
    assert (difference.outcome, broken.report.verdict) == ("differ", "FAIL")
    assert difference.parting is not None
    errors = [finding.where for finding in broken.report.findings if finding.severity == "error"]
    places = {(where.update, where.microbatch) for where in errors}
    first = difference.parting.where
    assert (first.update, first.microbatch) in places, f"{difference.parting} is none of {errors}"


def test_a_run_is_compared_with_a_launch(healthy: RecordedRun) -> None:
    command = (
        "trl grpo --per_device_train_batch_size 4 --num_generations 4 --gradient_accumulation_steps 2 --max_steps 4"
    )
    options = Options(rows=36, version=str(RELEASE))
    constant = "--lr_scheduler_type constant --learning_rate 1e-2"
    same = compare_with_plan(healthy, plan_launch([f"{command} --num_iterations 2 {constant}"], options))
    assert (same.outcome, same.quantities, same.departure) == ("same", (), None)
    other = compare_with_plan(healthy, plan_launch([f"{command} --num_iterations 3 {constant}"], options))
    assert other.outcome == "differ"
    assert other.departure is not None
    assert (other.departure.where.rollout, other.departure.where.update) == (1 if RELEASE.release >= (0, 17) else 2, 2)
    causes = {name for quantity in other.quantities for name in quantity.causes}
    assert "num_iterations" in causes
