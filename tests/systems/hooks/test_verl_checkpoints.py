"""What is read of an optimizer of verl before and after its first step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlstep_hooks.observe.checkpoints import optimizer_step

ADAM = {"lr": 1e-6, "betas": (0.9, 0.999)}
SGD = {"lr": 1e-6, "momentum": 0, "dampening": 0}


@pytest.mark.parametrize(
    ("state", "group", "step"),
    [
        ({}, ADAM, 0),
        ({"a": {"step": 12.0, "exp_avg": 0.0}}, ADAM, 12),
        ({}, SGD, None),
        ({}, SGD | {"momentum": 0.9}, 0),
        ({"a": {"momentum_buffer": 0.0}}, SGD | {"momentum": 0.9}, None),
        ({}, {"lr": 1e-6, "momentum": 0, "alpha": 0.99}, 0),
    ],
    ids=["Adam", "Adam later", "SGD", "SGD with momentum", "SGD with momentum later", "RMSprop"],
)
def test_the_steps_of_an_optimizer(state: dict[str, Any], group: dict[str, Any], step: int | None) -> None:
    assert optimizer_step(SimpleNamespace(state=state, param_groups=[group])) == step
