"""The learning rate of whole runs, against their configuration; and runs whose groups of parameters have different rates."""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("trl")

import torch
from transformers import SchedulerType, optimization

from rlstep_hooks.judge.links import links_of
from tests.faults.fault import on
from tests.systems.trl.helpers import problems
from tests.systems.trl.test_foreign_runs import audited

if TYPE_CHECKING:
    from pathlib import Path


def grouped(*rates: float) -> Any:
    """Give a trainer an optimizer whose groups, each a part of the model, have these rates."""

    def prepare(trainer: Any) -> None:
        parameters = list(trainer.model.parameters())
        bounds = [len(parameters) * place // len(rates) for place in range(len(rates) + 1)]
        parts = [parameters[begin:end] for begin, end in pairwise(bounds)]
        groups = [{"params": part, "lr": rate} for part, rate in zip(parts, rates, strict=True)]
        trainer.optimizer = torch.optim.AdamW(groups, lr=1e-2)

    return prepare


@pytest.mark.parametrize("rates", [(0.0, 1e-2), (1e-2, 0.0), (0.0, 1e-2, 1e-3), (0.0, 0.0, 0.0, 1e-2)])
@pytest.mark.parametrize("kind", ["linear", "constant"])
def test_a_group_that_is_kept_still_is_no_rate_of_zero(rates: tuple[float, ...], kind: str, tmp_path: Path) -> None:
    report = audited(tmp_path, fault=grouped(*rates), rows=12, lr_scheduler_type=kind)
    assert not problems(report)
    assert report.verdict == "PASS"


def test_all_groups_kept_still_are_found(tmp_path: Path) -> None:
    report = audited(tmp_path, fault=grouped(0.0, 0.0), rows=12)
    assert [finding.code for finding in report.findings if finding.severity == "error"] == ["RLS603"]


SCHEDULES: dict[str, dict[str, Any]] = {
    "constant_with_warmup": {},
    "linear": {},
    "cosine": {},
    "cosine_with_restarts": {"num_cycles": 2},
    "polynomial": {"power": 2.0},
    "inverse_sqrt": {},
    "cosine_with_min_lr": {"min_lr": 1e-4},
    "cosine_warmup_with_min_lr": {"min_lr_rate": 0.1},
    "warmup_stable_decay": {"num_decay_steps": 3},
}
"""Schedules of transformers that are functions of the updates, with arguments."""


def configured(kind: str) -> dict[str, Any]:
    """Settings of a run of 12 updates with a schedule and a warm-up."""
    if kind not in [str(of.value) for of in SchedulerType]:
        pytest.skip("the schedule came with a later release")
    return {
        "lr_scheduler_type": kind,
        "lr_scheduler_kwargs": SCHEDULES[kind] or None,
        "warmup_steps": 2,
        "rows": 12,
    }


def without_its_warmup(trainer: Any) -> None:
    """The scheduler is built as if no warm-up were configured."""
    build = trainer.create_scheduler

    def built(num_training_steps: int, optimizer: Any = None) -> Any:
        steps, trainer.args.warmup_steps = trainer.args.warmup_steps, 0
        try:
            return build(num_training_steps, optimizer)
        finally:
            trainer.args.warmup_steps = steps

    trainer.create_scheduler = built


def one_tick_ahead(trainer: Any) -> None:
    """The scheduler has made a tick before training begins."""
    on(trainer, "on_train_begin", lambda state, lr_scheduler=None, **kwargs: lr_scheduler.step())


def a_tenth_in_one_update(trainer: Any) -> None:
    """One update is made at a tenth of its rate."""

    def write(state: Any, optimizer: Any = None, **kwargs: Any) -> None:
        for group in optimizer.param_groups if state.global_step == 4 else ():
            group["lr"] *= 0.1

    on(trainer, "on_step_begin", write)


def second_group_at_a_tenth(trainer: Any) -> None:
    """One update is made with the second group at a tenth of its rate."""

    def write(state: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if state.global_step == 4:
            optimizer.param_groups[1]["lr"] *= 0.1

    on(trainer, "on_step_begin", write)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_each_schedule_of_transformers_is_compared(kind: str, tmp_path: Path) -> None:
    report = audited(tmp_path, **configured(kind))
    assert not [finding for finding in report.findings if finding.code.startswith("RLS6")], problems(report)
    [rate] = [rule for rule in report.rules if rule.code == "RLS605"]
    assert (rate.verdict, rate.checks) == ("PASS", report.counts.updates)


@pytest.mark.parametrize(
    ("fault", "first"),
    [(without_its_warmup, 0), (one_tick_ahead, 0), (a_tenth_in_one_update, 4)],
)
@pytest.mark.parametrize("kind", ["linear", "cosine_with_restarts", "polynomial", "cosine_with_min_lr", "inverse_sqrt"])
def test_another_rate_than_the_configured_one_is_found(kind: str, fault: Any, first: int, tmp_path: Path) -> None:
    report = audited(tmp_path, fault=fault, **configured(kind))
    found = [finding for finding in report.findings if finding.severity != "info" and not finding.explained_by]
    assert found, report.verdict
    assert found[0].code == "RLS605", problems(report)
    assert (found[0].severity, found[0].where.update) == ("error", first)
    assert f"({kind}, as configured)" in found[0].expected


def test_a_schedule_that_transformers_itself_computes_wrongly_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A mutant of seed 31129: the factor of the cosine is at least 1 in the place of 0, so the rate never falls."""
    name = "_get_cosine_schedule_with_warmup_lr_lambda"
    documented = getattr(optimization, name)

    @functools.wraps(documented)
    def never_below_one(tick: int, **settings: Any) -> float:
        factor: float = documented(tick, **settings)
        return factor if tick < settings["num_warmup_steps"] else max(1.0, factor)

    monkeypatch.setattr(optimization, name, never_below_one)
    report = audited(tmp_path, **configured("cosine"))
    [found] = [finding for finding in report.findings if finding.severity == "error"]
    assert (found.code, found.where.update) == ("RLS605", 3)


@pytest.mark.parametrize("kind", ["linear", "polynomial"])
def test_one_group_at_another_rate_is_found(kind: str, tmp_path: Path) -> None:
    report = audited(tmp_path, fault=second_group_at_a_tenth, **configured(kind))
    [found] = [finding for finding in report.findings if finding.code == "RLS605"]
    assert (found.severity, found.where.update) == ("error", 4)
    assert "in group 1" in found.expected


def test_other_arguments_than_the_configured_ones_are_found(tmp_path: Path) -> None:
    def rebuilt(trainer: Any) -> None:
        build = trainer.create_scheduler

        def built(num_training_steps: int, optimizer: Any = None) -> Any:
            given, trainer.args.lr_scheduler_kwargs = trainer.args.lr_scheduler_kwargs, {"power": 1.0}
            try:
                return build(num_training_steps, optimizer)
            finally:
                trainer.args.lr_scheduler_kwargs = given

        trainer.create_scheduler = built

    report = audited(tmp_path, fault=rebuilt, **configured("polynomial"))
    assert [finding.code for finding in report.findings if finding.severity == "error"] == ["RLS605"]


def test_a_scheduler_of_the_scripts_own_is_said_not_to_be_compared(tmp_path: Path) -> None:
    def own(trainer: Any) -> None:
        trainer.optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=1e-3)
        trainer.lr_scheduler = torch.optim.lr_scheduler.ExponentialLR(trainer.optimizer, 0.9)

    report = audited(tmp_path, fault=own, rows=12)
    assert not problems(report)
    assert "did not make its scheduler from its arguments" in report.not_evaluated["RLS605"]
    [link] = [link for link in links_of(report.rules, report.findings) if link.name == "learning rate"]
    assert link.state == "in part"
