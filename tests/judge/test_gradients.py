"""Gradients between the loss and the weights: how far they may be off, and what is said of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.judge.rule_examples import judged, measured, run, with_facts


def found(kind: str, place: int, precision: str = "float32", **values: Any) -> list[tuple[str, str]]:
    """Code and severity of what is found with these numbers."""
    findings = judged(measured(with_facts(run(), compute_dtype=precision), kind, place, **values))
    return [(finding.code, finding.severity) for finding in findings if finding.severity != "info"]


@pytest.mark.parametrize(
    ("gap", "precision", "severity"),
    [
        (5e-7, "float32", None),  # what a run shows
        (0.004, "bfloat16", None),
        (0.01, "float32", None),
        (0.1, "float32", "warning"),
        (0.2, "bfloat16", "warning"),
        (0.5, "float32", "error"),
        (0.5, "bfloat16", "error"),
    ],
)
def test_a_gradient_at_the_layers(gap: float, precision: str, severity: str | None) -> None:
    wanted = [] if severity is None else [("RLS805", severity)]
    assert found("microbatches", 4, precision, head_gap=gap) == wanted


@pytest.mark.parametrize(("gap", "severity"), [(8.0, None), (100.0, "warning"), (1e5, "error")])
def test_a_gradient_at_the_log_probs(gap: float, severity: str | None) -> None:
    wanted = [] if severity is None else [("RLS805", severity)]
    assert found("microbatches", 4, gradient_gap=gap, loss_ratio=1.0) == wanted


def test_matrices_that_lose_their_gradient() -> None:
    assert found("updates", 1, frozen=0, gradient_lost=0) == []
    assert found("updates", 1, frozen=0, gradient_lost=7) == [("RLS408", "error")]


@pytest.mark.parametrize(
    ("numbers", "words", "other"),
    [
        ({"loss_ratio": 1.0}, "the loss has its value", False),
        (
            {"loss_ratio": 1.0, "loss_like": "0 at every token"},
            "the loss has its value, and its gradient is 0 at every token",
            False,
        ),
        ({}, "its value was not compared", False),
        ({"loss_ratio": 0.5}, "the loss itself is not that of its formula (RLS801)", True),
        ({"loss_gap": 1e6}, "the loss itself is not that of its formula (RLS801)", True),
    ],
)
def test_a_gradient_of_another_loss_says_what_is_known_of_its_value(
    numbers: dict[str, Any], words: str, other: bool
) -> None:
    unknown = {"loss_ratio": None, "loss_gap": None}
    found = judged(measured(run(), "microbatches", 4, gradient_gap=1e6, **unknown | numbers))
    [gradient] = [finding for finding in found if finding.code == "RLS805"]
    assert words in gradient.why
    assert other == any(finding.code == "RLS801" for finding in found)


def without_gradient(norm: float | None) -> list[str]:
    """What is found of an update whose probed weights have no gradient, where the norm of all gradients is known to be this."""
    taught = measured(run(), "microbatches", max_abs_advantage=1.2, clipped=0.0)
    found = judged(measured(taught, "updates", 4, with_gradient=0, gradient_norm=norm, gradient_limit=1.0))
    return [finding.code for finding in found]


def test_a_norm_that_is_not_known_is_no_norm_of_zero() -> None:
    assert without_gradient(0.0) == ["RLS809"]
    assert without_gradient(0.5) == without_gradient(None) == []
