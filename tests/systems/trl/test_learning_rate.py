"""The rate that a schedule documents at each tick, against transformers' own schedulers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("trl")

import torch
from transformers import SchedulerType, TrainingArguments, get_scheduler

from rlstep_hooks.judge.learning_rate import read_schedule
from rlstep_hooks.planning.rate_schedules import RateShape, is_documented
from rlstep_hooks.systems.trl.observe.configured_rates import configured_warmup
from rlstep_hooks.systems.trl.observe.facts import rate_schedule

if TYPE_CHECKING:
    from pathlib import Path

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


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("constant", {}),
    ("constant_with_warmup", {}),
    ("linear", {}),
    ("cosine", {}),
    ("cosine", {"num_cycles": 1.5}),
    ("cosine_with_restarts", {}),
    ("cosine_with_restarts", {"num_cycles": 3}),
    ("polynomial", {}),
    ("polynomial", {"power": 2.0, "lr_end": 0.03}),
    ("inverse_sqrt", {}),
    ("cosine_with_min_lr", {"min_lr_rate": 0.1}),
    ("cosine_with_min_lr", {"min_lr": 0.1, "num_cycles": 0.7}),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.1}),
    ("cosine_warmup_with_min_lr", {"min_lr": 0.1, "warmup_lr_rate": 0.3, "num_cycles": 1.0}),
    ("warmup_stable_decay", {"num_decay_steps": 6}),
    ("warmup_stable_decay", {"num_decay_steps": 6, "num_stable_steps": 4, "min_lr_ratio": 0.2}),
    (
        "warmup_stable_decay",
        {"num_decay_steps": 9, "warmup_type": "cosine", "decay_type": "1-sqrt", "min_lr_ratio": 0.2},
    ),
    ("warmup_stable_decay", {"num_decay_steps": 9, "warmup_type": "1-sqrt", "decay_type": "linear"}),
    ("warmup_stable_decay", {"num_decay_steps": 9, "num_cycles": 1.5}),
]
"""Each documented kind with its options."""
FOLLOW_A_METRIC = {"reduce_lr_on_plateau", "greedy"}


@pytest.mark.parametrize("warmup", [0, 1, 5])
@pytest.mark.parametrize(("kind", "options"), OPTIONS)
def test_each_documented_factor_is_that_of_transformers(kind: str, options: dict[str, Any], warmup: int) -> None:
    """Transformers as it was published agrees with the formulas that its schedules are compared with."""
    if kind not in {str(of.value) for of in SchedulerType}:
        pytest.skip("the schedule came with a later release")
    shape = RateShape(kind, HORIZON, warmup, 0.3, options)
    assert is_documented(shape)
    [published] = scheduler(kind, warmup, **options).lr_lambdas
    for tick in range(HORIZON + 3):
        assert shape.factor(tick) == pytest.approx(published(tick), rel=1e-12, abs=1e-15)


def test_every_kind_that_follows_no_metric_is_documented() -> None:
    """A release with a new kind is noticed here; until then transformers itself is asked for it."""
    kinds = {str(of.value) for of in SchedulerType} - FOLLOW_A_METRIC
    assert not [kind for kind in kinds if not is_documented(RateShape(kind, HORIZON))]
    assert not is_documented(RateShape("inverse_sqrt", HORIZON, options={"timescale": 7}))


SHARE = "warmup_ratio" if hasattr(TrainingArguments, "warmup_ratio") else "warmup_steps"
"""The argument that takes a share of the run: 5.x dropped the one of its own."""


@pytest.mark.parametrize("given", [{}, {"warmup_steps": 3}, {SHARE: 0.13}])
def test_the_warmup_is_that_of_the_arguments(given: dict[str, Any], tmp_path: Path) -> None:
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[], **given)
    for ticks in (1, 7, 100, 1001):
        assert configured_warmup(args, ticks) == args.get_warmup_steps(ticks)


@pytest.mark.parametrize("kind", ["polynomial", "inverse_sqrt", "cosine_with_restarts"])
def test_a_schedule_without_a_formula_is_not_read(kind: str) -> None:
    assert rate_schedule(scheduler(kind, 0), kind) is None


def test_a_scheduler_of_the_users_own_is_not_taken_for_the_configured_one() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.3)
    own = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda tick: 1 / (1 + tick))
    assert rate_schedule(own, "linear") is None
    assert rate_schedule(scheduler("linear", 0), "cosine") is None
    assert rate_schedule(SimpleNamespace(), "linear") is None
