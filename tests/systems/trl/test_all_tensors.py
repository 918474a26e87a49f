"""What a probe of four tensors does not read: every other weight, moment and frozen tensor of a live run."""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import TrainerCallback

from tests.systems.trl.helpers import problems

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.judge.report import Finding, Report

SETTINGS: dict[str, Any] = {"rows": 16, "num_iterations": 2, "gradient_accumulation_steps": 1}


def call_at(trainer: Any, event: str, act: Callable[[Any], None], *, since: int = 3) -> None:
    """Act at one of transformers' events, from the one on at which this many updates are made."""
    callback = TrainerCallback()

    def handle(args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= since:
            with torch.no_grad():
                act(trainer)

    setattr(callback, event, handle)
    trainer.add_callback(callback)


def first_found(report: Report, code: str) -> Finding:
    """The first error of this rule."""
    found = [finding for finding in report.findings if finding.code == code and finding.severity == "error"]
    assert found, problems(report)
    return found[0]


def norm_of(trainer: Any) -> Any:
    return trainer.model.model.layers[0].input_layernorm.weight


WRITERS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "in place, after the step": ("on_optimizer_step", lambda trainer: norm_of(trainer).mul_(0.99)),
    "through .data, before the step": ("on_pre_optimizer_step", lambda trainer: norm_of(trainer).data.mul_(0.99)),
    "by other memory": (
        "on_step_end",
        lambda trainer: setattr(norm_of(trainer), "data", norm_of(trainer).data * 0.99),
    ),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_write_to_one_tensor_of_many_is_found(name: str, build: Callable[..., Any]) -> None:
    trainer, audit = build(**SETTINGS)
    event, write = WRITERS[name]
    call_at(trainer, event, write)
    trainer.train()
    found = first_found(audit.report, "RLS404")
    assert found.where is not None
    assert found.where.update in (3, 4), found  # a write after a step shows at the next one
    assert found.observed == "1 tensor has other values"


def test_moments_of_one_tensor_that_are_cleared_once_are_found(build: Callable[..., Any]) -> None:
    trainer, audit = build(**SETTINGS)
    cleared: list[int] = []

    def clear(trainer: Any) -> None:
        if not cleared:
            cleared.append(1)
            state = trainer.optimizer.state
            state[list(state)[7]]["exp_avg"].zero_()

    call_at(trainer, "on_step_begin", clear)
    trainer.train()
    found = first_found(audit.report, "RLS807")
    assert found.where is not None
    assert found.where.update == 3
    assert found.observed == "others in 1 tensor"


def test_a_step_that_is_wrong_for_one_tensor_is_found_when_its_turn_comes(build: Callable[..., Any]) -> None:
    trainer, audit = build(**SETTINGS | {"weight_decay": 0.0})
    create = trainer.create_optimizer

    def created(*args: Any, **kwargs: Any) -> Any:
        made = create(*args, **kwargs)
        step = made.step

        def stepped(optimizer: Any, *given: Any, **more: Any) -> Any:
            before = norm_of(trainer).detach().clone()
            result = step(*given, **more)
            with torch.no_grad():
                norm_of(trainer).lerp_(before, 0.5)
            return result

        made.step = MethodType(stepped, made)  # torch's schedulers take a method apart
        return made

    trainer.create_optimizer = created
    trainer.train()
    assert [f.code for f in audit.report.findings if f.severity == "error"], problems(audit.report)


def freeze(trainer: Any) -> None:
    for parameter in trainer.model.model.layers[0].parameters():
        parameter.requires_grad_(False)


KEPT: dict[str, tuple[Callable[[Any], None], str]] = {
    "a frozen weight": (
        lambda trainer: trainer.model.model.layers[0].mlp.up_proj.weight.data.mul_(0.98),
        "1 tensor with other values, the first is model.layers.0.mlp.up_proj.weight",
    ),
    "rotary frequencies": (
        lambda trainer: trainer.model.model.rotary_emb.inv_freq.mul_(1.5),
        "1 tensor with other values, the first is model.rotary_emb.inv_freq",
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_training_leaves_as_it_is_is_compared(name: str, build: Callable[..., Any]) -> None:
    trainer, audit = build(**SETTINGS)
    freeze(trainer)
    write, words = KEPT[name]
    call_at(trainer, "on_step_end", write)
    trainer.train()
    found = first_found(audit.report, "RLS404")
    assert found.where is not None
    assert found.where.update == 4
    assert found.observed == words


def test_a_model_with_frozen_layers_is_not_accused(build: Callable[..., Any]) -> None:
    trainer, audit = build(**SETTINGS)
    freeze(trainer)
    trainer.train()
    assert [of for of in problems(audit.report) if "RLS404" in str(of) or "RLS80" in str(of)] == []
