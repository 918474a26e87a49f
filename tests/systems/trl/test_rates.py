"""The learning rate of whole runs, against their configuration; and runs whose groups of parameters have different rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("trl")

import torch

from tests.systems.trl.helpers import problems
from tests.systems.trl.test_foreign_runs import audited

if TYPE_CHECKING:
    from pathlib import Path


def grouped(*rates: float) -> Any:
    """Give a trainer an optimizer whose groups, each a part of the model, have these rates."""

    def prepare(trainer: Any) -> None:
        parameters = list(trainer.model.parameters())
        bounds = [len(parameters) * place // len(rates) for place in range(len(rates) + 1)]
        parts = [parameters[begin:end] for begin, end in zip(bounds, bounds[1:], strict=False)]
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
