"""Losses that are not finite, against formulas that are, and the reverse."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rlstep_hooks.observe.losses import LOST, Formula, LossBatch, Term  # noqa: E402 - torch may be missing

PLAIN: Formula[None] = Formula(
    settings=None,
    leaf="log_probs",
    terms=lambda _, batch: [Term(-batch.tensors["log_probs"], "token-mean")],
    edges=lambda _, batch: torch.zeros_like(batch.mask, dtype=torch.bool),
    sizes=lambda *_: None,
    mistakes=lambda *_: (),
)


def batch_of(log_probs: list[float]) -> LossBatch:
    return LossBatch(tensors={"log_probs": torch.tensor([log_probs])}, mask=torch.ones(1, len(log_probs)))


def compared(log_probs: list[float], loss: float) -> tuple[float | None, str]:
    numbers = PLAIN.compare(batch_of(log_probs), loss, microbatches=1)
    return numbers.loss_gap, numbers.loss_like


def compared_later(log_probs: list[float], loss: float) -> tuple[float | None, str]:
    columns, like = PLAIN.columns(batch_of(log_probs), torch.tensor(loss))
    gap = float(columns["loss_gap"])
    return (gap if gap == gap else None), like()


@pytest.mark.parametrize("how", [compared, compared_later])
@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_that_is_not_finite_is_another(how: Any, loss: float) -> None:
    gap, like = how([-1.0, -3.0], loss)
    assert gap == pytest.approx(LOST)
    assert "NaN or infinite" in like


@pytest.mark.parametrize("how", [compared, compared_later])
def test_of_log_probs_that_are_no_numbers_nothing_is_said(how: Any) -> None:
    assert how([-1.0, float("nan")], float("nan"))[0] is None


@pytest.mark.parametrize("how", [compared, compared_later])
def test_the_documented_loss_is_right(how: Any) -> None:
    assert how([-1.0, -3.0], 2.0)[0] == 0.0
