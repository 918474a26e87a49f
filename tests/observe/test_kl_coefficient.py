"""The coefficient of a KL penalty: what its documented rule gives, and what is said of a controller that does something else."""

from __future__ import annotations

import pytest

from rlstep_hooks.observe.kl_coefficient import Adaptation, CoefficientWatch


@pytest.mark.parametrize(
    ("divergence", "factor"),
    [(0.0, 1 - 0.2 * 16 / 100), (0.011, 1 + 0.1 * 16 / 100), (5.0, 1 + 0.2 * 16 / 100), (0.01, 1.0)],
)
def test_the_rule_of_the_paper(divergence: float, factor: float) -> None:
    """By hand: 16 samples, a target of 0.01, a horizon of 100."""
    following, allowed = Adaptation(0.01, 100.0).following(0.5, divergence, 16)
    assert following == pytest.approx(0.5 * factor)
    assert allowed < 1e-4


def test_a_controller_that_follows_it() -> None:
    watch, held = CoefficientWatch(0.5, Adaptation(0.01, 100.0)), 0.5
    for divergence in (0.0, 0.02, 0.0101, 0.009):
        assert watch.now == held
        held, _ = Adaptation(0.01, 100.0).following(held, divergence, 16)
        assert watch.penalised(divergence, 16, held) == ""


def test_a_controller_that_stands_still_is_named_and_believed_from_there_on() -> None:
    watch = CoefficientWatch(0.5, Adaptation(0.01, 100.0))
    assert "goes on with 0.5 where its adaptive controller gives 0.484" in watch.penalised(0.0, 16, 0.5)
    assert watch.now == 0.5
    assert watch.penalised(0.01, 16, 0.5) == ""


def test_rollouts_that_are_not_computed_again_are_believed() -> None:
    watch = CoefficientWatch(0.5, Adaptation(0.01, 100.0))
    assert watch.penalised(None, 16, 0.7) == ""
    assert watch.now == 0.7


def test_a_fixed_coefficient_stays_what_is_configured() -> None:
    watch = CoefficientWatch(0.5)
    assert watch.penalised(3.0, 16, 0.9) == ""
    assert watch.now == 0.5
