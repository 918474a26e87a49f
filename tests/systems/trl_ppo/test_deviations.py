"""PPOTrainer's own deviations, each in a real run, explained in the finding; every event is still compared with what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.record.events import Rollout, Update
from tests.systems.trl.conftest import RELEASE
from tests.systems.trl.helpers import codes, events_of, explained, problems

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks import StepAuditCallback

GOLDEN = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 8,
    "num_mini_batches": 4,
    "num_ppo_epochs": 4,
    "response_length": 3,
}


def updates_by_rollout(audit: StepAuditCallback) -> list[int]:
    made: list[int] = []
    for event in events_of(audit):
        if isinstance(event, Rollout):
            made.append(0)
        elif isinstance(event, Update):
            made[-1] += event.applied
    return made


@pytest.mark.skipif(RELEASE.release < (0, 17), reason="up to 0.16 num_mini_batches made the rollout larger")
def test_minibatches_do_not_set_the_number_of_updates(build: Callable[..., Any]) -> None:
    """The golden case: the sizes say 16 updates for each of six rollouts; and the logged ratio is a quarter."""
    trainer, audit = build(rows=96, total_episodes=192, learning_rate=1e-6, **GOLDEN)
    trainer.train()
    report = audit.report
    assert updates_by_rollout(audit) == [4, 4, 32, 4, 4, 32]
    assert report.counts.updates == report.schedule.updates == 80
    assert report.verdict == "FAIL"
    assert codes(report) == {"RLS113", "RLS309"}  # nothing about the order: each event came when the plan says
    assert explained(report) == {"trl-ppo-accumulation-decides"}
    updates, ratio = sorted(report.findings, key=lambda finding: finding.code)[-2:]
    assert (updates.code, updates.expected) == ("RLS113", "16 updates for each rollout, as the sizes say")
    assert updates.observed == "4 updates, and 32 in the last rollout of a data epoch"
    assert (ratio.code, ratio.occurrences) == ("RLS309", 6)
    assert ratio.expected.endswith("rollout, 1")
    assert ratio.observed == "0.25 in the logs, 0.25 times that"
    logged = [entry["val/ratio"] for entry in trainer.state.log_history if "val/ratio" in entry]
    assert logged == pytest.approx([0.25] * 6, rel=1e-3)
    for finding in (updates, ratio):  # one explanation of both
        assert "num_ppo_epochs * num_mini_batches * ceil(" in finding.why
        assert "val/ratio" in finding.why
        assert finding.fix.startswith("gradient_accumulation_steps=1")


def test_the_workaround_works(build: Callable[..., Any]) -> None:
    settings = GOLDEN | {"per_device_train_batch_size": 32, "gradient_accumulation_steps": 1}
    if RELEASE.release < (0, 17):
        settings["per_device_train_batch_size"] = 8
    trainer, audit = build(rows=96, total_episodes=96, **settings)
    trainer.train()
    assert not problems(audit.report)
    assert updates_by_rollout(audit) == [16, 16, 16]
    assert audit.report.schedule.samples_per_rollout == 32


def test_every_microbatch_of_the_last_rollout_is_an_update(build: Callable[..., Any]) -> None:
    trainer, audit = build(rows=16, gradient_accumulation_steps=2, num_ppo_epochs=2, total_episodes=32)
    trainer.train()
    assert updates_by_rollout(audit) == [2, 4, 2, 4]
    assert codes(audit.report) == {"RLS113"}
    assert explained(audit.report) == {"trl-ppo-last-rollout"}
    assert audit.report.findings[0].observed == "2 updates, and 4 in the last rollout of a data epoch"


def test_one_evaluation_batch_moves_the_flush(build: Callable[..., Any]) -> None:
    """Its loader is at its end once completions were sampled, and stays the one in use until the pass over the prompts ends."""
    trainer, audit = build(
        rows=24,
        evaluation_rows=4,
        gradient_accumulation_steps=2,
        num_ppo_epochs=1,
        total_episodes=48,
        num_sample_generations=1,
    )
    trainer.train()
    assert updates_by_rollout(audit) == [1, 2, 2, 1, 1, 2]
    assert codes(audit.report) == {"RLS113"}


def test_windows_that_go_on_over_rollouts(build: Callable[..., Any]) -> None:
    """4 micro-batches and a window of 3: gradients wait in a rollout for the next, and a pass takes what waits."""
    if RELEASE.release < (0, 17):
        pytest.skip("up to 0.16 a rollout is a whole number of windows")
    trainer, audit = build(
        rows=48,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=3,
        num_mini_batches=4,
        num_ppo_epochs=1,
        total_episodes=48,
    )
    trainer.train()
    assert updates_by_rollout(audit) == [1, 1, 2, 4]
    assert codes(audit.report) <= {"RLS113", "RLS309"}


def test_the_models_own_generation_config_cuts_the_old_log_probs(build: Callable[..., Any]) -> None:
    """As in Qwen2.5: its top-p reaches generation, whose scores are the old log-probs. Every update is then off by as much."""
    trainer, audit = build(rows=8, total_episodes=16, per_device_train_batch_size=4)
    trainer.model.policy.generation_config.top_p = 0.8
    trainer.train()
    assert {"RLS301", "RLS410"} <= codes(audit.report), problems(audit.report)
    named = {f.code: f for f in audit.report.findings if f.deviation == "trl-generation-config-of-the-model"}
    assert {"RLS301", "RLS410"} <= set(named)
    assert "top_p 0.8" in named["RLS410"].observed
    assert "generation_config" in named["RLS301"].fix
