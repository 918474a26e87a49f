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
        ({}, "its value was not compared", False),
        ({"loss_ratio": 0.5}, "the loss itself is not that of its formula (RLS801)", True),
        ({"loss_gap": 1e6}, "the loss itself is not that of its formula (RLS801)", True),
    ],
)
def test_a_gradient_of_another_loss_says_what_is_known_of_its_value(
    numbers: dict[str, float], words: str, other: bool
) -> None:
    unknown = {"loss_ratio": None, "loss_gap": None}
    found = judged(measured(run(), "microbatches", 4, gradient_gap=1e6, **unknown | numbers))
    [gradient] = [finding for finding in found if finding.code == "RLS805"]
    assert words in gradient.why
    assert other == any(finding.code == "RLS801" for finding in found)
