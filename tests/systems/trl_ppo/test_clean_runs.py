"""Healthy runs: PASS, no finding, and the counts that the sizes give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import rlstep_hooks
import rlstep_hooks.systems.engine.live_plan
from rlstep_hooks.record.events import EpochEnd, Rollout, RunStarted
from tests.reports import claimed
from tests.systems.trl.conftest import RELEASE
from tests.systems.trl.helpers import events_of, problems

if TYPE_CHECKING:
    from collections.abc import Callable


def test_two_data_epochs(build: Callable[..., Any]) -> None:
    trainer, audit = build(
        rows=24, per_device_train_batch_size=8, num_mini_batches=2, num_ppo_epochs=2, total_episodes=48
    )
    trainer.train()
    report = audit.report
    assert not problems(report)
    assert report.verdict == "PASS"
    assert claimed(report, "trl_ppo") == set()
    assert report.complete
    samples = 8 * (2 if RELEASE.release < (0, 17) else 1)  # num_mini_batches made the rollout larger until 0.17
    rollouts = 48 // samples
    assert report.counts.samples == 48
    assert report.counts.rollouts == report.counts.old_logprob_refreshes == rollouts
    assert report.counts.updates == report.counts.microbatches == rollouts * 2 * 2
    assert report.schedule.updates == report.counts.updates
    assert [values.lag for values in report.lags] == [0, 1, 2, 3]
    assert report.lags[0].max_abs_log_ratio < 1e-5  # generation and training forward agree
    assert report.lags[1].max_abs_log_ratio > 1e-4
    ended = [event.epoch for event in events_of(audit) if isinstance(event, EpochEnd)]
    assert ended == list(range(1, (rollouts - 1) // (24 // samples) + 1))


def test_the_settings_are_read_from_the_live_trainer(build: Callable[..., Any]) -> None:
    trainer, audit = build(rows=8, total_episodes=8, num_ppo_epochs=3, warmup_steps=1)
    trainer.train()
    started = next(event for event in events_of(audit) if isinstance(event, RunStarted))
    assert started.schedule is not None
    assert (started.schedule.framework, started.schedule.version) == ("TRL", str(RELEASE))
    assert (started.schedule.rollouts, started.schedule.reuse_epochs, started.schedule.updates) == (2, 3, 6)
    assert started.facts["lr_horizon"] == started.schedule.lr_ticks == 2
    assert started.facts["compute_dtype"] == "float32"


def test_each_rollout_comes_with_reference_log_probs(build: Callable[..., Any]) -> None:
    trainer, audit = build(rows=8, total_episodes=8)
    trainer.train()
    assert [event.reference for event in events_of(audit) if isinstance(event, Rollout)] == [True, True]


def test_accumulation_without_the_end_of_a_pass(build: Callable[..., Any]) -> None:
    """One rollout of a longer pass: accumulation works as it says."""
    trainer, audit = build(rows=24, gradient_accumulation_steps=2, total_episodes=16)
    trainer.train()
    assert not problems(audit.report)
    assert audit.report.counts.updates == 2 * 2
    assert audit.report.counts.microbatches == 8


def test_completions_sampled_in_between_are_no_rollouts(build: Callable[..., Any]) -> None:
    """The evaluation loader has two batches and is left after the first: no rollout of prompts stands at an end of a loader."""
    trainer, audit = build(
        rows=16, evaluation_rows=8, gradient_accumulation_steps=2, total_episodes=32, num_sample_generations=4
    )
    trainer.train()
    report = audit.report
    assert not problems(report)
    assert (report.counts.rollouts, report.counts.updates) == (4, 8)


def test_completions_that_a_callback_samples_are_no_rollouts(build: Callable[..., Any]) -> None:
    import torch
    from transformers import TrainerCallback

    trainer, audit = build()
    policy = trainer.accelerator.unwrap_model(trainer.model).policy

    class Samples(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            policy.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, do_sample=True, temperature=0.1)

    trainer.add_callback(Samples())
    trainer.train()
    assert audit.report.verdict == "PASS", [str(finding) for finding in audit.report.findings]


def test_a_ratio_in_the_logs_is_the_one_that_was_measured(build: Callable[..., Any]) -> None:
    trainer, audit = build(rows=8, total_episodes=8)
    trainer.train()
    outcome = next(rule for rule in audit.report.rules if rule.code == "RLS309")
    assert (outcome.verdict, outcome.checks) == ("PASS", 2)


def test_the_plan_of_a_configuration_and_of_a_trainer(build: Callable[..., Any]) -> None:
    trainer, _ = build(rows=24, gradient_accumulation_steps=2, total_episodes=48)
    planned = rlstep_hooks.plan(trainer)
    assert (planned.rollouts, planned.updates) == (6, 2 + 2 + 4 + 2 + 2 + 4)
    assert rlstep_hooks.plan(trainer.args, rows=24) == planned
    assert rlstep_hooks.plan(trainer.args).updates is None
    with pytest.raises(rlstep_hooks.planning.refusal.PlanError, match="hangs"):
        rlstep_hooks.plan(trainer, rows=4)
