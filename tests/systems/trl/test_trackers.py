"""What a tracker shows of an audited run: read back from the event files that real runs wrote for TensorBoard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.testing.tiny_trl import tiny_trainer
from rlstep_hooks.testing.trl_faults import regenerate_every_step
from tests.systems.tensorboard import Points, points, split
from tests.systems.trl.helpers import problems

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.judge.report import Report

PREFIX = "train/rlstep/"
"""transformers puts "train/" before every name (`rewrite_logs`)."""
NAMES = {"rollouts", "updates", "lag_max", "log_ratio_max_lag_0", "weight_version_age", "findings", "verdict"}
SETTINGS: dict[str, Any] = {"gradient_accumulation_steps": 2, "num_iterations": 2, "max_steps": 8}
_TIMES = ("runtime", "per_second", "step_time")


def train(folder: Path, *callbacks: Any, fault: Any = None, **settings: Any) -> Points:
    trainer = tiny_trainer(folder, callbacks=callbacks, report_to="tensorboard", **SETTINGS | settings)
    if fault is not None:
        fault(trainer)
    trainer.train()
    return points(folder)


def check_last(shown: Points, report: Report) -> None:
    """The last point of each curve is what the report says."""
    last = {name: values[-1][1] for name, values in shown.items()}
    lags = {values.lag: values for values in report.lags}
    assert last["rollouts"] == report.counts.rollouts
    assert last["updates"] == report.counts.updates
    assert last["lag_max"] == max(lags)
    assert last["log_ratio_max_lag_0"] == pytest.approx(lags[0].max_abs_log_ratio)
    assert last["findings"] == len(problems(report))
    assert last["verdict"] == (1 if report.verdict == "PASS" else 0)


def test_tokens_counted_in_every_log_are_no_end_of_training(tmp_path: Path) -> None:
    """With this setting each log of transformers 5 has a run time, as else only the last has."""
    audit = StepAuditCallback(log_dir=None, listeners=())
    train(tmp_path, audit, include_num_input_tokens_seen=True)
    assert audit.report.verdict == "PASS", problems(audit.report)
    assert audit.report.counts.updates == 8


def test_a_healthy_run(tmp_path: Path) -> None:
    audit = StepAuditCallback(log_dir=None, listeners=())
    shown, others = split(train(tmp_path / "audited", audit), PREFIX)
    assert shown.keys() == NAMES
    assert shown["updates"] == [*((step, step) for step in range(1, 9)), (8, 8)], (
        "at each log, and when training is over"
    )
    assert {value for _, value in shown["verdict"]} == {1}
    assert {value for _, value in shown["findings"]} == {0}
    assert {value for _, value in shown["weight_version_age"]} == {0}
    check_last(shown, audit.report)
    assert shown["lag_max"][-1][1] == 1

    _, bare = split(train(tmp_path / "bare"), PREFIX)
    assert bare.keys() == others.keys(), "nothing else is added"
    for tag, values in bare.items():
        assert any(part in tag for part in _TIMES) or others[tag] == values, tag


def test_a_fault_shows_where_it_begins(tmp_path: Path) -> None:
    audit = StepAuditCallback(log_dir=None, listeners=())
    shown, _ = split(train(tmp_path, audit, fault=regenerate_every_step), PREFIX)
    check_last(shown, audit.report)
    update = audit.report.findings[0].where.update
    assert update in (0, 1), "0.16 generates for each micro-batch of the first pass anyway"
    assert [value for _, value in shown["verdict"]] == [1] * update + [0] * (9 - update)


def test_the_switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLSTEP_SCALARS", "0")
    audit = StepAuditCallback(log_dir=None, listeners=())
    shown, _ = split(train(tmp_path, audit, max_steps=2), PREFIX)
    assert audit.report.verdict == "PASS"
    assert not shown
