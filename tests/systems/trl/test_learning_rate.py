"""The rate that a schedule documents at each tick, against transformers' own schedulers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl")

import torch
from transformers import get_scheduler

from rlstep_hooks.judge.learning_rate import read_schedule
from rlstep_hooks.systems.trl.observe.facts import rate_schedule

HORIZON = 20
KINDS: dict[str, dict[str, Any]] = {
    "constant": {},
    "constant_with_warmup": {},
    "linear": {},
    "cosine": {},
    "cosine_with_min_lr": {"min_lr_rate": 0.1},
}


def scheduler(kind: str, warmup: int, **settings: Any) -> Any:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.3)
    return get_scheduler(kind, optimizer, warmup, HORIZON, scheduler_specific_kwargs=settings or None)


@pytest.mark.parametrize("warmup", [0, 1, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_each_tick_has_the_rate_that_transformers_gives(kind: str, warmup: int) -> None:
    live = scheduler(kind, warmup, **KINDS[kind])
    schedule = read_schedule({"lr_schedule": rate_schedule(live, kind)})
    assert schedule is not None
    for tick in range(HORIZON + 3):
        assert live.last_epoch == tick
        assert schedule.rate(tick) == pytest.approx(live.get_last_lr()[0], rel=1e-12, abs=1e-15)
        live.optimizer.step()
        live.step()


@pytest.mark.parametrize("kind", ["polynomial", "inverse_sqrt", "cosine_with_restarts"])
def test_a_schedule_without_a_formula_is_not_read(kind: str) -> None:
    assert rate_schedule(scheduler(kind, 0), kind) is None


def test_a_scheduler_of_the_users_own_is_not_taken_for_the_configured_one() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.3)
    own = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda tick: 1 / (1 + tick))
    assert rate_schedule(own, "linear") is None
    assert rate_schedule(scheduler("linear", 0), "cosine") is None
    assert rate_schedule(SimpleNamespace(), "linear") is None
