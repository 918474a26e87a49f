"""Faults put into real runs: the first event that differs is named, and what follows is still compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from tests.systems.trl.helpers import codes, problems

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = {"rows": 16, "num_ppo_epochs": 2, "total_episodes": 16}


class After(TrainerCallback):  # type: ignore[misc]
    """Does something after one rollout's updates."""

    def __init__(self, rollout: int, does: Callable[[Any], None]) -> None:
        self._rollout, self._does = rollout, does

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self._rollout:
            self._does(kwargs | {"args": args})


def test_passes_changed_in_mid_run(build: Callable[..., Any]) -> None:
    trainer, audit = build(callbacks=(After(2, lambda given: setattr(given["args"], "num_ppo_epochs", 1)),), **SIZES)
    trainer.train()
    found = {finding.code: finding for finding in audit.report.findings if finding.severity != "info"}
    assert audit.report.verdict == "FAIL"
    assert set(found) == {"RLS101", "RLS201", "RLS206"}
    assert found["RLS101"].observed == "num_ppo_epochs = 1"
    assert found["RLS201"].where.rollout == 3
    assert found["RLS206"].observed == "the end of training after 6 updates"


def test_an_optimizer_step_outside_the_loop(build: Callable[..., Any]) -> None:
    trainer, audit = build(callbacks=(After(1, lambda given: trainer.optimizer.optimizer.step()),), **SIZES)
    trainer.train()
    assert audit.report.counts.updates == 4 * 2 + 1
    assert "RLS203" in codes(audit.report)
    first = next(finding for finding in audit.report.findings if finding.code == "RLS203")
    assert (first.where.rollout, first.where.update) == (0, 2)
    assert first.observed == "an update after 0 micro-batches"


def test_updates_that_are_swallowed(build: Callable[..., Any]) -> None:
    trainer, audit = build(**SIZES)
    inner = trainer.optimizer.optimizer
    step, calls = inner.step, []

    def every_other(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return step(*args, **kwargs) if len(calls) % 2 else None

    inner.step = every_other
    trainer.train()
    assert codes(audit.report) == {"RLS210"}
    assert audit.report.counts.updates == audit.report.counts.skipped_updates == 4


def test_dropout_that_only_training_has(build: Callable[..., Any]) -> None:
    """The trainer switches dropout layers off; attention has a probability of its own."""
    trainer, audit = build(**SIZES)
    for module in trainer.policy_model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.3
    trainer.train()
    assert codes(audit.report) == {"RLS301"}
    assert "dropout" in next(f for f in audit.report.findings if f.code == "RLS301").why


def test_weights_written_between_rollouts(build: Callable[..., Any]) -> None:
    def perturb(given: Any) -> None:
        with torch.no_grad():
            for parameter in given["model"].parameters():
                parameter.mul_(1.01)

    trainer, audit = build(callbacks=(After(2, perturb),), **SIZES)
    trainer.train()
    assert codes(audit.report) == {"RLS404"}, problems(audit.report)


def test_responses_replaced_after_generation(build: Callable[..., Any]) -> None:
    """Something rewrites the tokens between sampling and training: none of the trained samples was generated."""
    trainer, audit = build(**SIZES)
    forward = trainer.model.forward

    def rewritten(**given: Any) -> Any:
        return forward(**given)

    rewriting = trainer.model.register_forward_pre_hook(
        lambda module, args, kwargs: (args, kwargs | {"input_ids": (kwargs["input_ids"] + 1) % 20}), with_kwargs=True
    )
    trainer.model.forward = rewritten
    trainer.train()
    rewriting.remove()
    assert "RLS306" in codes(audit.report), problems(audit.report)
