"""Scripts that call `PPOTrainer.step()`: healthy runs, accelerate's deviation, faults; and training as without the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch

import rlstep_hooks
from rlstep_hooks import StepAuditError, StepAuditPPO
from rlstep_hooks.record.events import Rollout, RunEnded, Update
from rlstep_hooks.record.ledger import MemoryLedger
from tests.systems.trl_step.tiny import tiny_prompts, tiny_step_trainer, tiny_steps

if TYPE_CHECKING:
    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.record.events import AnyEvent

WINDOWS = {"mini_batch_size": 2, "gradient_accumulation_steps": 2}


def audited(trainer: Any, *, passes: int = 1, **settings: Any) -> StepAuditPPO:
    with StepAuditPPO(trainer, listeners=(), log_dir=None, **settings) as audit:
        for _ in range(passes):
            tiny_steps(trainer, trainer.dataloader)
    return audit


def events_of(audit: StepAuditPPO) -> list[AnyEvent]:
    recorder = audit._session.recorder
    assert recorder is not None
    assert isinstance(recorder.ledger, MemoryLedger)
    return list(recorder.ledger.events)


def updates_by_rollout(audit: StepAuditPPO) -> list[int]:
    made: list[int] = []
    for event in events_of(audit):
        if isinstance(event, Rollout):
            made.append(0)
        elif isinstance(event, Update):
            made[-1] += event.applied
    return made


def codes(report: Report) -> set[str]:
    return {finding.code for finding in report.findings if finding.severity != "info"}


def test_the_public_name() -> None:
    assert rlstep_hooks.StepAuditPPO is StepAuditPPO


def test_two_passes_over_the_rows() -> None:
    audit = audited(tiny_step_trainer(), passes=2)
    report = audit.report
    assert report.verdict == "PASS"
    assert not codes(report)
    assert report.complete
    assert updates_by_rollout(audit) == [4] * 6
    assert (report.counts.samples, report.counts.microbatches, report.counts.old_logprob_refreshes) == (48, 24, 6)
    assert (report.schedule.framework, report.schedule.samples_per_update) == ("TRL", 4)
    assert [values.lag for values in report.lags] == [0, 1, 2, 3]
    assert report.lags[0].max_abs_log_ratio < 1e-5
    assert report.lags[1].max_abs_log_ratio > 1e-4


def test_every_microbatch_of_the_last_rollout_is_an_update() -> None:
    audit = audited(tiny_step_trainer(**WINDOWS), passes=2)
    assert updates_by_rollout(audit) == [4, 4, 8, 4, 4, 8]
    assert codes(audit.report) == {"RLS113"}  # and nothing about the order
    finding = next(finding for finding in audit.report.findings if finding.code == "RLS113")
    assert finding.deviation == "trl-ppo-last-rollout"
    assert finding.observed == "4 updates, and 8 in the last rollout of a data epoch"


def test_prompts_that_accelerate_does_not_know() -> None:
    """A loop of the script's own over its own prompts: there is no loader that could stand at its end."""
    trainer = tiny_step_trainer(with_rows=False, **WINDOWS)
    rows = list(tiny_prompts(16))
    batches = [{"input_ids": [row["input_ids"] for row in rows[start : start + 8]]} for start in (0, 8)]
    with StepAuditPPO(trainer, listeners=(), log_dir=None) as audit:
        tiny_steps(trainer, batches)
    assert updates_by_rollout(audit) == [4, 4]
    assert audit.report.verdict == "PASS"
    assert not codes(audit.report)


def test_batches_used_twice_are_not_judged() -> None:
    """Two calls of step() for each batch: which of them meets the end of the loader is not what was planned."""
    trainer = tiny_step_trainer(rows=16, **WINDOWS)
    with StepAuditPPO(trainer, listeners=(), log_dir=None) as audit:
        for batch in trainer.dataloader:
            tiny_steps(trainer, [batch, batch])
    assert audit.report.verdict in ("NOT_EVALUATED", "FAIL")
    assert "another way than one batch" in audit.report.not_evaluated["order"]
    assert codes(audit.report) <= {"RLS113"}


def test_early_stopping_saves_updates() -> None:
    trainer = tiny_step_trainer(early_stopping=True, target_kl=1e-4, ppo_epochs=5, learning_rate=1e-2)
    audit = audited(trainer)
    report = audit.report
    assert report.schedule.updates_bound == "upper"
    assert report.verdict == "PASS"
    assert not codes(report)
    assert report.counts.updates < 3 * 10
    assert "RLS212" in {finding.code for finding in report.findings}


# Faults.


def test_passes_changed_in_mid_run() -> None:
    trainer = tiny_step_trainer()
    with StepAuditPPO(trainer, listeners=(), log_dir=None) as audit:
        batches = iter(trainer.dataloader)
        tiny_steps(trainer, [next(batches)])
        trainer.config.ppo_epochs = 1
        tiny_steps(trainer, batches)
    assert updates_by_rollout(audit) == [4, 2, 2]
    assert audit.report.verdict == "FAIL"
    first = next(finding for finding in audit.report.findings if finding.code == "RLS201")
    assert first.where.rollout == 2


def _with_steps_of_its_own(trainer: Any, audit: StepAuditPPO) -> None:
    with audit:
        for batch in trainer.dataloader:
            tiny_steps(trainer, [batch])
            trainer.optimizer.step()


def test_a_step_of_the_scripts_own() -> None:
    trainer = tiny_step_trainer()
    audit = StepAuditPPO(trainer, listeners=(), log_dir=None)
    _with_steps_of_its_own(trainer, audit)
    assert audit.report.verdict == "FAIL"
    first = next(finding for finding in audit.report.findings if finding.code == "RLS203")
    assert (first.where.rollout, first.where.update) == (0, 4)


def test_weights_written_after_the_old_log_probs() -> None:
    trainer = tiny_step_trainer()
    rewards, calls = trainer.compute_rewards, []

    def perturbing(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            with torch.no_grad():
                for parameter in trainer.model.parameters():
                    parameter.mul_(1.1)
        return rewards(*args, **kwargs)

    trainer.compute_rewards = perturbing
    report = audited(trainer).report
    assert codes(report) == {"RLS301", "RLS404"}
    assert next(f for f in report.findings if f.code == "RLS301").where.rollout == 1


# Training is as without the audit.


def state_of(trainer: Any, statistics: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "weights": {name: value.clone() for name, value in trainer.model.state_dict().items()},
        "torch": torch.get_rng_state(),
        "numpy": torch.as_tensor(numpy.random.get_state()[1].astype("int64")),
        "statistics": [
            {name: torch.as_tensor(value) for name, value in entry.items() if not name.startswith("time/")}
            for entry in statistics
        ],
    }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    return bool(torch.equal(torch.nan_to_num(one.double()), torch.nan_to_num(other.double())))


def test_bit_for_bit_the_same() -> None:
    plain = tiny_step_trainer(**WINDOWS)
    before = state_of(plain, tiny_steps(plain, plain.dataloader))
    trainer = tiny_step_trainer(**WINDOWS)
    with StepAuditPPO(trainer, listeners=(), log_dir=None) as audit:
        statistics = tiny_steps(trainer, trainer.dataloader)
    assert audit.report.counts.updates
    after = state_of(trainer, statistics)
    for part, value in before.items():
        assert same(value, after[part]), part


def _one_step_and_a_wrong_one(trainer: Any, audit: StepAuditPPO) -> None:
    with audit:
        tiny_steps(trainer, [next(iter(trainer.dataloader))])
        trainer.step([torch.tensor([3])], [torch.tensor([4])], [torch.tensor(1.0)])


def test_nothing_stays_behind_after_an_exception() -> None:
    trainer = tiny_step_trainer()
    before = set(vars(trainer))
    audit = StepAuditPPO(trainer, listeners=(), log_dir=None)
    with pytest.raises(ValueError, match="Batch size"):
        _one_step_and_a_wrong_one(trainer, audit)
    assert set(vars(trainer)) == before
    assert not trainer.optimizer.optimizer._optimizer_step_post_hooks
    ended = next(event for event in events_of(audit) if isinstance(event, RunEnded))
    assert ended.status == "raised"
    assert ended.error.startswith("ValueError: Batch size")


def test_on_fail_raise() -> None:
    trainer = tiny_step_trainer()
    with pytest.raises(StepAuditError, match="RLS203"):
        _with_steps_of_its_own(trainer, StepAuditPPO(trainer, on_fail="raise", listeners=(), log_dir=None))


def test_what_the_plan_alone_shows_raises_nothing() -> None:
    report = audited(tiny_step_trainer(**WINDOWS), on_fail="raise").report
    assert codes(report) == {"RLS113"}
    assert report.complete


def test_another_object_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with StepAuditPPO(object(), listeners=(), log_dir=None) as audit:
        pass
    assert "object is not supported" in audit.report.not_evaluated["order"]
    assert "object is not supported" in capsys.readouterr().err
