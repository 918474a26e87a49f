"""What else goes on in a process that is audited: copies of the trainer, forked workers, another audit."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest

import rlstep_hooks
from rlstep_hooks import Report, StepAuditCallback
from rlstep_hooks.record.ledger import records
from rlstep_hooks.testing.tiny_trl import tiny_reward, tiny_trainer
from tests.systems.classic.tiny import TinyLoop, plan
from tests.systems.trl.helpers import problems

if TYPE_CHECKING:
    from pathlib import Path

REUSED = {"gradient_accumulation_steps": 2, "num_iterations": 2, "max_steps": 4}


def audits_of(trainer: Any) -> list[StepAuditCallback]:
    return [found for found in trainer.callback_handler.callbacks if isinstance(found, StepAuditCallback)]


def test_a_deep_copy_of_an_audited_trainer_trains_with_an_audit_of_its_own(tmp_path: Path) -> None:
    try:
        copy.deepcopy(tiny_trainer(tmp_path, **REUSED))
    except TypeError as error:
        pytest.skip(f"this trainer cannot be copied without an audit either: {error}")
    audit = StepAuditCallback(log_dir=None, listeners=())
    trainer = tiny_trainer(tmp_path, callbacks=[audit], **REUSED)
    other = copy.deepcopy(trainer)
    [audit_of_other] = audits_of(other)
    other.train()
    # No verdict on the copy: in some releases its model runs the forward of the original, and RLS402 is right to say so.
    assert audit_of_other.report.counts.updates == 4
    assert audit.report.verdict == "NOT_EVALUATED", "it has not begun"
    trainer.train()
    assert (audit.report.verdict, audit.report.counts) == ("PASS", audit_of_other.report.counts)
    assert "train" not in vars(trainer)


def test_a_pickled_callback_is_a_new_audit_with_the_same_arguments(tmp_path: Path) -> None:
    audit = StepAuditCallback("stop", tmp_path / "log", listeners=())
    tiny_trainer(tmp_path, callbacks=[audit], **REUSED).train()
    other = pickle.loads(pickle.dumps(audit))
    assert (other.on_fail, other.report.verdict) == ("stop", "NOT_EVALUATED")
    tiny_trainer(tmp_path, callbacks=[other], **REUSED).train()
    assert other.report.verdict == "PASS"
    assert len(records(tmp_path / "log")) == 2


def test_workers_that_are_forked_while_it_records(tmp_path: Path) -> None:
    audit = StepAuditCallback(log_dir=tmp_path / "log", listeners=())
    tiny_trainer(tmp_path, callbacks=[audit], dataloader_num_workers=2, **REUSED).train()
    assert audit.report.verdict == "PASS", problems(audit.report)
    [(record,)] = records(tmp_path / "log").values()
    assert record.problems() == []


@pytest.mark.parametrize("named", [True, False])
def test_an_audited_loop_within_a_reward_function(tmp_path: Path, named: bool) -> None:
    """Two audits in one process, one of them with torch's hook on all optimizers."""
    within: list[Report] = []

    def reward(completions: list[Any], **columns: Any) -> list[float]:
        loop = TinyLoop()
        with rlstep_hooks.audit(
            plan(), optimizer=loop.optimizer if named else None, log_dir=None, listeners=()
        ) as inner:
            loop.run(inner)
        within.append(inner.report)
        return tiny_reward(completions=completions, **columns)

    audit = StepAuditCallback(log_dir=None, listeners=())
    tiny_trainer(tmp_path, callbacks=[audit], reward=reward, **REUSED).train()
    assert audit.report.verdict == "PASS", problems(audit.report)
    assert audit.report.counts.updates == 4
    assert [report.verdict for report in within] == ["PASS"] * len(within)
    assert within
