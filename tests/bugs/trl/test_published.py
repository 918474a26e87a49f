"""Real bugs of published releases of TRL: named in a release that has them, and silence in one that has not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("trl")

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.testing.tiny_trl import tiny_trainer
from tests.bugs.bug import bugs_of
from tests.bugs.outcomes import check_after, check_before
from tests.faults.fault import on
from tests.faults.test_trl_faults import alarms
from tests.systems.trl.conftest import RELEASE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rlstep_hooks.judge.report import Report

HERE = f"TRL {RELEASE}"
BUGS = {
    name: bug
    for name, bug in bugs_of("trl").items()
    if bug.way == "published releases" and HERE in (bug.made_in, bug.silent_in)
}
"""Those that the installed release has, or that it has no longer."""

CYCLE: dict[str, Any] = {"gradient_accumulation_steps": 2, "num_iterations": 2, "max_steps": 8}


@pytest.fixture(autouse=True)
def numbers_with_each_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a run whose rollouts take longer than the interval, which is a second; these take milliseconds."""
    monkeypatch.setattr("rlstep_hooks.session.session.INTERVAL", 0.0)


def trained(folder: Path, act: Callable[[Any], None] = lambda trainer: None, **settings: Any) -> Report:
    """The report of a run, before which `act` may do something."""
    audit = StepAuditCallback(log_dir=None, listeners=())
    trainer = tiny_trainer(folder, callbacks=[audit], **settings)
    act(trainer)
    trainer.train()
    return audit.report


def evaluate_after_the_first_update(trainer: Any) -> None:
    """Evaluate from a callback, as a script of one's own does."""
    on(trainer, "on_step_end", lambda state, **_: trainer.evaluate() if state.global_step == 1 else None)


RUNS: dict[str, Callable[[Path], Report]] = {
    "evaluation_from_a_callback": lambda folder: trained(
        folder, evaluate_after_the_first_update, evaluation_rows=3, **CYCLE
    ),
    "uneven_generation_period": lambda folder: trained(
        folder,
        gradient_accumulation_steps=4,
        steps_per_generation=3,
        num_train_epochs=1,
        loss_type="bnpo",
        rows=36,
    ),
    "rows_that_fill_no_rollout": lambda folder: trained(
        folder, gradient_accumulation_steps=2, num_iterations=2, num_train_epochs=1, rows=37, lr_scheduler_type="linear"
    ),
    "checkpointing_while_generating": lambda folder: trained(
        folder, gradient_checkpointing=True, max_completion_length=16, **CYCLE
    ),
    "generation_batch_beside_the_accumulation": lambda folder: trained(
        folder, gradient_accumulation_steps=2, steps_per_generation=4, max_steps=4, loss_type="dapo"
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_named_in_a_release_that_has_it_and_silent_without(name: str, tmp_path: Path) -> None:
    bug = BUGS[name]
    report = RUNS[bug.fault](tmp_path)
    if bug.made_in == HERE:
        check_before(name, bug, report.verdict, alarms(report))
    else:
        check_after(name, report.verdict, alarms(report))
