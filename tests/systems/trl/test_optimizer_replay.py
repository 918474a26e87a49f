"""Steps of torch's own optimizers are those of their formulas, however many are worked up at once; others are found."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rlstep_hooks.observe.optimizer_replay import OptimizerReplay
from rlstep_hooks.observe.weight_probe import WeightProbe

if TYPE_CHECKING:
    from collections.abc import Callable

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.01),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.01, momentum=0.9, dampening=0.1, weight_decay=0.1),
    "nesterov": lambda groups: torch.optim.SGD(groups, lr=0.01, momentum=0.9, nesterov=True, maximize=True),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01, weight_decay=0.1),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.95)),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.01, momentum=0.5, maximize=True),
    "fused": lambda groups: torch.optim.AdamW(groups, lr=0.01, fused=True),
}
STEPS = 8


def numbers_of(
    make: Callable[[Any], torch.optim.Optimizer],
    dtype: torch.dtype,
    act: Callable[[int, torch.optim.Optimizer, list[torch.nn.Parameter]], None] = lambda *_: None,
) -> dict[int, dict[str, Any]]:
    """Train on random gradients with two groups, a rate that falls, and tensors that now and then have no gradient.

    Args:
        act: Called twice at each step: with its number before the step, and with -1 minus its number right after it.
    """
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(*shape).to(dtype)) for shape in ((700,), (3,), (20, 5), (8, 8))]
    optimizer = make([{"params": parameters[:2], "weight_decay": 0.3}, {"params": parameters[2:]}])
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.1, STEPS)
    replay = OptimizerReplay(WeightProbe(parameters).probed, optimizer)
    assert not replay.uncovered
    for update in range(STEPS):
        for place, parameter in enumerate(parameters):
            absent = (place == 1 and update < 3) or (place == 2 and update == 4)
            parameter.grad = None if absent else torch.randn_like(parameter)
        act(update, optimizer, parameters)
        replay.before_step(compared=update != 2)
        optimizer.step()
        act(-1 - update, optimizer, parameters)
        replay.after_step(update)
        schedule.step()
    worked_up = replay.work_up()
    assert worked_up is not None
    assert replay.work_up() is None
    source, vector = worked_up
    return source.values(vector.tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_documented_step_is_where_its_formula_puts_it(name: str, dtype: torch.dtype) -> None:
    found = numbers_of(OPTIMIZERS[name], dtype)
    for update in range(STEPS):
        if update != 2:
            assert found[update]["optimizer_off"] < 1
            assert (found[update]["moments_off"] is None) == (name == "sgd")
            assert (found[update]["moments_off"] or 0.0) < 1
            if dtype == torch.float32:  # else many steps are smaller than the rounding of their weights
                assert found[update]["optimizer_share"] == pytest.approx(1, abs=0.01)
        # Looked at before every step that follows a replayed one, replayed itself or not.
        followed = update not in (0, 3) and name != "sgd"
        assert found.get(update, {}).get("moments_lost") == (0 if followed else None)


CANCELLING = {
    "momentum": ("momentum_buffer", -0.9 / (1 - 0.1)),
    "nesterov": ("momentum_buffer", 0.9 * 0.9 / (1 + 0.9)),
    "adam": ("exp_avg", -0.9 / (1 - 0.9)),
    "adamw": ("exp_avg", -0.8 / (1 - 0.8)),
    "fused": ("exp_avg", -0.9 / (1 - 0.9)),
}
"""Optimizer -> its moment, and how many times that moment the gradient is which leaves no step."""


@pytest.mark.parametrize("name", CANCELLING)
def test_terms_of_a_step_may_cancel(name: str) -> None:
    """What moment and gradient leave of each other has the rounding of both, and where the weight is 0 nothing hides it."""
    torch.manual_seed(0)
    moment, times = CANCELLING[name]
    parameter = torch.nn.Parameter(torch.zeros(256))
    optimizer = OPTIMIZERS[name]([{"params": [parameter], "weight_decay": 0.0}])
    replay = OptimizerReplay([(parameter, 256, 1)], optimizer)
    for update in range(64):
        parameter.grad = torch.randn(256)
        optimizer.step()
        with torch.no_grad():
            parameter.zero_()
        held = optimizer.state[parameter][moment].double()
        parameter.grad = (times * held).float() * (1 + 1e-6 * torch.randn(256))
        replay.before_step(compared=True)
        optimizer.step()
        replay.after_step(update)
    worked_up = replay.work_up()
    assert worked_up is not None
    source, vector = worked_up
    assert max(of["optimizer_off"] for of in source.values(vector.tolist()).values() if "optimizer_off" in of) < 1


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_only_the_step_that_was_changed_is_off(name: str) -> None:
    def write(step: int, optimizer: Any, parameters: list[torch.nn.Parameter]) -> None:
        if step == -1 - 6:
            with torch.no_grad():
                parameters[0].mul_(1.01)

    found = numbers_of(OPTIMIZERS[name], torch.float32, write)
    assert [update for update in found if (found[update].get("optimizer_off") or 0) > 1] == [6]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_checkpoint_that_is_loaded_later_brings_groups_of_its_own(name: str) -> None:
    def load(step: int, optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter]) -> None:
        if step == 3:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    found = numbers_of(OPTIMIZERS[name], torch.float32, load)
    assert all(found[update]["optimizer_off"] < 1 for update in range(STEPS) if update != 2)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "sgd"])
def test_moments_that_are_gone_before_a_step_are_counted(name: str) -> None:
    def clear(step: int, optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter]) -> None:
        if step in (2, 5):
            optimizer.state.clear()

    found = numbers_of(OPTIMIZERS[name], torch.float32, clear)
    assert sorted(update for update in found if found[update].get("moments_lost")) == [2, 5]


def test_moments_that_are_no_numbers_were_lost_by_nobody() -> None:
    def spoil(step: int, optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter]) -> None:
        if step == 3:
            for parameter in parameters:
                parameter.grad = torch.full_like(parameter, torch.nan)

    found = numbers_of(OPTIMIZERS["adamw"], torch.float32, spoil)
    assert all(not of.get("moments_lost") for of in found.values())


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "sgd"])
def test_moments_that_a_step_leaves_are_those_of_its_formula(name: str) -> None:
    def flatten(update: int, optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter]) -> None:
        if update == -1 - 6:  # right after the step
            for state in optimizer.state.values():
                for kept in state.values():
                    if isinstance(kept, torch.Tensor) and kept.dim():
                        kept.fill_(kept.mean())

    found = numbers_of(OPTIMIZERS[name], torch.float32, flatten)
    assert [update for update in found if (found[update].get("moments_off") or 0) > 100] == [6]
    assert found[6]["optimizer_off"] < 1
