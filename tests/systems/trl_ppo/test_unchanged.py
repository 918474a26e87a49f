"""Training is bit for bit the same with and without the audit, also when it ends in an exception, and nothing stays behind."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.record.events import RunEnded, Unobserved
from rlstep_hooks.systems.trl_ppo.observe.measure import RatioMeter
from rlstep_hooks.systems.trl_ppo.observe.trainer import PpoObserver
from rlstep_hooks.systems.trl_ppo.observe.watch import ArithmeticWatch
from rlstep_hooks.testing.tiny_ppo import tiny_ppo_trainer
from tests.systems.broken import MESSAGE, break_method
from tests.systems.trl.helpers import events_of, problems

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SETTINGS: dict[str, dict[str, Any]] = {
    "windows": {"rows": 16, "gradient_accumulation_steps": 2, "num_ppo_epochs": 2, "total_episodes": 32},
    "sampling": {"rows": 8, "evaluation_rows": 4, "total_episodes": 16, "num_sample_generations": 4},
}


def _state(trainer: Any) -> dict[str, Any]:
    moments = trainer.optimizer.state_dict()["state"]
    return {
        "weights": {name: value.clone() for name, value in trainer.model.state_dict().items()},
        "moments": {(index, name): value for index, entry in moments.items() for name, value in entry.items()},
        "torch": torch.get_rng_state(),
        "numpy": numpy.random.get_state()[1],
        "python": random.getstate(),
        "logs": [{k: v for k, v in entry.items() if k != "eps"} for entry in trainer.state.log_history],
    }


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, numpy.ndarray):
        return bool((one == other).all())
    return bool(one == other)


def _train(folder: Path, name: str, callbacks: list[Any]) -> Any:
    trainer = tiny_ppo_trainer(folder, callbacks=callbacks, **SETTINGS[name])
    # Only now: the first trainer of a process imports rich, which draws from Python's generator (TRL 0.16.1).
    random.seed(3)
    numpy.random.seed(3)
    trainer.train()
    return trainer


@pytest.mark.parametrize("name", SETTINGS)
def test_bit_for_bit_the_same(tmp_path: Path, name: str) -> None:
    audit = StepAuditCallback(log_dir=tmp_path / "record", listeners=())
    plain = _state(_train(tmp_path / "plain", name, []))
    audited = _state(_train(tmp_path / "audited", name, [audit]))
    assert audit.report.counts.updates
    assert list((tmp_path / "record").iterdir())
    for part, before in plain.items():
        assert _same(before, audited[part]), part


def _hooks(trainer: Any) -> list[Any]:
    policy, reference, inner = trainer.policy_model, trainer.ref_model, trainer.optimizer.optimizer
    models = (policy, reference, trainer.reward_model.model, trainer.reward_model.score, trainer.value_model.score)
    owners = (trainer, trainer.accelerator, trainer.optimizer, trainer.callback_handler, *models)
    names = (
        "forward",
        "generate",
        "generate_completions",
        "null_ref_context",
        "backward",
        "step",
        "accumulate",
        "call_event",
    )
    return [
        *((type(owner).__name__, name) for owner in owners for name in names if name in vars(owner)),
        *trainer.model._forward_hooks.values(),
        *trainer.model._forward_pre_hooks.values(),
        *reference._forward_pre_hooks.values(),
        *inner._optimizer_step_pre_hooks.values(),
        *inner._optimizer_step_post_hooks.values(),
    ]


def test_nothing_stays_behind(build: Callable[..., Any]) -> None:
    trainer, audit = build(rows=8, total_episodes=8)
    before = _hooks(trainer)
    trainer.train()
    assert audit.report.verdict == "PASS"
    assert _hooks(trainer) == before


@pytest.mark.parametrize("where", ["generation", "value", "callback"])
def test_an_exception_passes_and_ends_the_record(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    trainer, audit = build(rows=8, total_episodes=16)

    def fail(*args: Any, **kwargs: Any) -> Any:
        if trainer.state.global_step == 1:
            raise FloatingPointError("by the test")
        return inner(*args, **kwargs)

    owner, name = {
        "generation": (trainer.policy_model, "generate"),
        "value": (trainer.value_model.score, "forward"),
        "callback": (trainer.callback_handler.callbacks[-1], "on_log"),
    }[where]
    inner = getattr(owner, name)
    monkeypatch.setattr(owner, name, fail)
    before = _hooks(trainer)
    with pytest.raises(FloatingPointError, match="by the test"):
        trainer.train()
    ended = [event for event in events_of(audit) if isinstance(event, RunEnded)]
    assert [(event.status, event.error) for event in ended] == [("raised", "FloatingPointError: by the test")]
    assert not audit.report.complete
    assert _hooks(trainer) == before


def test_a_second_training_call_is_audited_too(build: Callable[..., Any]) -> None:
    trainer, audit = build(rows=8, total_episodes=8)
    trainer.train()
    first = audit.report
    trainer.train()
    assert audit.report is not first
    # Its learning rate is used up: the scheduler goes on where the first call ended.
    assert not [text for text in problems(audit.report) if not text.startswith("RLS60")]
    assert audit.report.counts.updates == first.counts.updates


def test_what_the_plan_alone_shows_ends_no_training(build: Callable[..., Any]) -> None:
    audit = StepAuditCallback(on_fail="raise", log_dir=None, listeners=())
    trainer, _ = build(audit=audit, rows=16, gradient_accumulation_steps=2, total_episodes=32)
    trainer.train()
    finding = audit.report.findings[0]
    assert (finding.code, finding.planned, finding.deviation) == ("RLS113", True, "trl-ppo-last-rollout")
    assert (audit.report.verdict, audit.report.complete) == ("FAIL", True)


def test_on_fail_stop_is_said_to_be_impossible(build: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    audit = StepAuditCallback(on_fail="stop", log_dir=None, listeners=())
    trainer, _ = build(audit=audit, rows=16, gradient_accumulation_steps=2, total_episodes=32)
    trainer.train()
    assert "PPOTrainer does not stop when a callback asks it to" in capsys.readouterr().err
    assert audit.report.complete


@pytest.mark.parametrize("method", ["generated", "trained", "mean_ratio"])
def test_an_error_of_the_audit_costs_an_observation(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ArithmeticError("of the audit")

    trainer, audit = build(rows=8, total_episodes=8)
    monkeypatch.setattr(RatioMeter, method, fail)
    trainer.train()
    assert audit.report.verdict == "PASS"
    assert "hook failed" in audit.report.not_evaluated["log_ratio"]
    assert audit.report.counts.updates == 4


@pytest.mark.parametrize(
    ("owner", "name", "topics"),
    [
        (PpoObserver, "_last_rollout_is_over", {"order", "samples", "refresh"}),
        (ArithmeticWatch, "_compare_rollout", {"advantages", "formula"}),
    ],
)
def test_a_part_that_fails_costs_its_topics_alone(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, owner: type, name: str, topics: set[str]
) -> None:
    trainer, audit = build(rows=8, total_episodes=8)
    break_method(monkeypatch, owner, name)
    trainer.train()
    lost = [event for event in events_of(audit) if isinstance(event, Unobserved)]
    assert {event.what for event in lost if MESSAGE in event.why} == topics
    assert not problems(audit.report)
    assert audit.report.counts.updates == 4
