"""AsyncGRPOTrainer for real: ages against the bound of the plan, and what happens to samples between the queue and the loss."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

import rlstep_hooks
from rlstep_hooks.record.events import MicroBatch, Rollout, WeightSync
from tests.reports import claimed
from tests.systems.trl.helpers import codes, events_of, problems

if TYPE_CHECKING:
    from collections.abc import Callable


def ages(audit: Any) -> list[int]:
    """Updates that the samples of each micro-batch were behind."""
    found = [event for event in events_of(audit) if isinstance(event, MicroBatch)]
    return [event.policy_version - event.sampled_version for event in found if event.sampled_version is not None]


CLEAN = [
    {"max_steps": 4},
    {"max_steps": 4, "gradient_accumulation_steps": 2},
    {"max_steps": 5, "weight_sync_steps": 2, "gradient_accumulation_steps": 2},
    {"max_steps": 4, "max_staleness": 0},
    {"max_steps": 5, "max_staleness": 1, "ahead": 60},
    {"num_train_epochs": 0.25, "max_steps": -1},
]


@pytest.mark.parametrize("settings", CLEAN, ids=str)
def test_a_healthy_run_has_no_finding(build: Callable[..., Any], settings: dict[str, Any]) -> None:
    trainer, audit = build(**settings)
    trainer.train()
    report = audit.report
    assert not problems(report)
    assert report.verdict == "PASS"
    assert claimed(report, "trl_async") == set()
    assert report.counts.updates == trainer.state.global_step > 0
    assert report.counts.rollouts == report.counts.updates
    assert report.counts.microbatches == report.counts.updates * trainer.args.gradient_accumulation_steps
    schedule = report.schedule
    assert max(ages(audit)) <= schedule.max_age_updates
    assert rlstep_hooks.plan(trainer) == schedule


def test_micro_batches_by_tokens_are_followed_too(build: Callable[..., Any]) -> None:
    trainer, audit = build(max_steps=4, token_budget=40)
    trainer.train()
    assert not problems(audit.report)
    assert "token_budget" in str(audit.report.not_evaluated)
    assert max(ages(audit)) <= audit.report.schedule.max_age_updates


def test_samples_may_be_older_than_max_staleness_says(build: Callable[..., Any]) -> None:
    """The loader fetches one micro-batch ahead: with max_staleness=0 every update but the first trains what is one update old."""
    trainer, audit = build(max_steps=5, max_staleness=0)
    trainer.train()
    assert ages(audit) == [0, 1, 1, 1, 1]
    assert audit.report.schedule.max_age_updates == 1
    assert audit.report.verdict == "PASS"


def test_the_ratio_is_1_where_the_engine_has_the_weights(build: Callable[..., Any]) -> None:
    trainer, audit = build(max_steps=3)
    trainer.train()
    outcome = next(rule for rule in audit.report.rules if rule.code == "RLS403")
    assert (outcome.verdict, outcome.checks) == ("PASS", 1)


def test_syncs_have_the_numbers_of_the_trainer(build: Callable[..., Any]) -> None:
    trainer, audit = build(max_steps=3)
    trainer.train()
    syncs = [(event.policy_version, event.label) for event in events_of(audit) if isinstance(event, WeightSync)]
    assert syncs == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_hooks_come_off(build: Callable[..., Any]) -> None:
    """Nothing of the trainer is another object than before."""
    trainer, _ = build(max_steps=2)
    before = {
        name: getattr(trainer, name).__func__ for name in ("training_step", "compute_loss", "_sync_weight_merged")
    }
    trainer.train()
    assert not {"training_step", "compute_loss", "_sync_weight_merged"} & set(vars(trainer))
    assert {name: getattr(trainer, name).__func__ for name in before} == before
    assert "get" not in vars(trainer.rollout_queue)
    assert not trainer.model._forward_hooks


# Faults.


def _stale_are_kept(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue's dataset forgets its bound."""
    from trl.experimental.async_grpo.async_grpo_trainer import RolloutQueueDataset

    built = RolloutQueueDataset.__init__

    def without_bound(self: Any, *args: Any, **kwargs: Any) -> None:
        built(self, *args, **{**kwargs, "max_staleness": 1000})

    monkeypatch.setattr(RolloutQueueDataset, "__init__", without_bound)


def _every_third_is_lost(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between queue and batcher samples get lost."""
    from trl.experimental.async_grpo.async_grpo_trainer import RolloutQueueDataset

    whole = RolloutQueueDataset.__iter__

    def lossy(self: Any) -> Any:
        for number, sample in enumerate(whole(self)):
            if number % 3 != 1:
                yield sample

    monkeypatch.setattr(RolloutQueueDataset, "__iter__", lossy)


def _no_second_sync(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The callback that syncs is gone: only the first sync is made."""
    callbacks = trainer.callback_handler.callbacks
    monkeypatch.setattr(
        trainer.callback_handler,
        "callbacks",
        [each for each in callbacks if getattr(each, "fn", None) != trainer._sync_weight],
    )


def _other_weights_at_first(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has other weights, and takes none."""
    import torch

    engine = trainer.weight_transfer
    engine.receives = False
    with torch.no_grad():
        for parameter in engine.model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)


IN_THE_TRAINER = [
    (_stale_are_kept, {"max_steps": 8, "max_staleness": 1, "ahead": 60}, "RLS402"),
    (_every_third_is_lost, {"max_steps": 4}, "RLS207"),
    (_no_second_sync, {"max_steps": 4}, "RLS405"),
    (_other_weights_at_first, {"max_steps": 3}, "RLS403"),
]


@pytest.mark.parametrize(
    ("fault", "settings", "code"), IN_THE_TRAINER, ids=lambda value: getattr(value, "__name__", None)
)
def test_a_fault_of_the_trainer_is_found(
    build: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[Any, pytest.MonkeyPatch], None],
    settings: dict[str, Any],
    code: str,
) -> None:
    trainer, audit = build(**settings)
    fault(trainer, monkeypatch)
    trainer.train()
    assert code in codes(audit.report), audit.report.findings


def _counted(worker: Any, sample: Any) -> list[Any]:
    """Stamped with a counter of samples, not with the version of the weights."""
    return [dataclasses.replace(sample, model_version=100 + worker.put)]


def _twice(worker: Any, sample: Any) -> list[Any]:
    return [sample, sample] if worker.put % 7 == 3 else [sample]


def _twice_as_a_copy(worker: Any, sample: Any) -> list[Any]:
    """As a queue between processes would give it: equal, but no longer the same object."""
    copied = dataclasses.replace(sample, input_ids=sample.input_ids.copy(), old_log_probs=sample.old_log_probs.copy())
    return [sample, copied] if worker.put % 7 == 3 else [sample]


IN_THE_WORKER = [(_counted, "RLS402"), (_twice, "RLS502"), (_twice_as_a_copy, "RLS502")]


@pytest.mark.parametrize(("change", "code"), IN_THE_WORKER, ids=lambda value: getattr(value, "__name__", None))
def test_a_fault_of_the_worker_is_found(
    build: Callable[..., Any], change: Callable[[Any, Any], list[Any]], code: str
) -> None:
    trainer, audit = build(max_steps=4, change=change)
    trainer.train()
    assert code in codes(audit.report), audit.report.findings
    first = next(finding for finding in audit.report.findings if finding.code == code)
    assert first.where.rollout is not None
    assert first.where.rollout <= 2


def test_rollouts_are_the_samples_of_one_update(build: Callable[..., Any]) -> None:
    trainer, audit = build(max_steps=3, gradient_accumulation_steps=2)
    trainer.train()
    rollouts = [event for event in events_of(audit) if isinstance(event, Rollout)]
    assert [event.samples for event in rollouts] == [8, 8, 8]
    assert [event.policy_version for event in rollouts] == [0, 1, 2]
