"""Symptoms of real trainings whose machinery is right: `rlstep why` comes to a conclusion."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.judge.measures import measures_of
from rlstep_hooks.judge.settings import RunSettings
from rlstep_hooks.judge.symptoms import why
from rlstep_hooks.systems.engine import index
from tests.systems.trl.conftest import RELEASE
from tests.systems.trl.helpers import trained

if TYPE_CHECKING:
    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.judge.symptoms import SymptomAnswer

SEES_REWARDS = RELEASE.release >= (0, 20)
"""Before 0.20 rewards and advantages are computed in one method."""


def judged(build: Any, **settings: Any) -> Report:
    trainer, audit = build(gradient_accumulation_steps=2, **settings)
    trained(trainer)
    report: Report = audit.report
    return report


def answer(report: Report, name: str) -> SymptomAnswer:
    (found,) = why(report, (name,), knobs=index.knobs_of(report.schedule))
    return found


def measured(report: Report) -> dict[str, str]:
    measures = measures_of(report, RunSettings(report.schedule, index.knobs_of(report.schedule)))
    return {each.name: each.words for each in measures.held}


def test_a_kl_that_explodes_is_the_learning_rates(build: Any) -> None:
    report = judged(build, max_steps=24, learning_rate=0.3, num_iterations=4, beta=0.04, rows=96)
    assert report.verdict == "PASS"
    assert {"log ratio", "KL from the old policy"} <= {line.quantity for line in report.health}
    assert max(lag.max_abs_log_ratio for lag in report.lags) > 20
    found = answer(report, "kl-explodes")
    assert found.sign
    assert "learning rate of 0.3" in found.conclusion
    assert found.left[0].change.startswith("lower learning_rate: try 0.03, a tenth")
    assert any("num_iterations" in left.change for left in found.left)
    held = measured(report)
    assert re.search(r" \(beta = 0\.04\)$", held["KL to reference"])
    assert report.readings.reference_kl is not None
    assert report.readings.reference_kl.largest > 10
    assert "limit 1" in held["gradient norm"]
    assert why(report)[0].shown
    assert "kl-explodes" in [each.name for each in why(report) if each.shown]


def test_an_entropy_that_collapses_is_the_learning_rates(build: Any) -> None:
    report = judged(build, max_steps=40, learning_rate=0.05, num_iterations=2, rows=96)
    assert report.verdict == "PASS"
    found = answer(report, "entropy-falls")
    assert "fell from" in found.sign
    assert "learning rate of 0.05" in found.conclusion
    assert found.left[0].change.startswith("lower learning_rate: try 0.005, a tenth")
    assert any("set beta above 0" in left.change for left in found.left)
    assert report.readings.probability is not None
    assert report.readings.probability.smallest < 1.0 < 3.5 < report.readings.probability.largest
    if report.readings.entropy is not None:
        assert report.readings.entropy.last < report.readings.entropy.largest / 2


def test_a_kl_of_0_without_a_reference_is_by_design(build: Any) -> None:
    report = judged(build, max_steps=4, beta=0.0)
    found = answer(report, "kl-zero")
    assert found.conclusion.startswith("by design: beta = 0: this run has no reference model")
    assert found.left[0].change == "set beta above 0 if you want one"
    assert answer(report, "ratio-one").conclusion.startswith("by design: one update on each rollout")
    assert not report.health


@pytest.mark.skipif(not SEES_REWARDS, reason="this release computes rewards and advantages in one method")
def test_a_flat_reward_of_equal_groups_is_found(build: Any) -> None:
    report = judged(build, max_steps=6, reward=lambda completions, **_: [1.0] * len(completions))
    found = answer(report, "reward-flat")
    assert found.found
    assert "same reward" in found.sign
    assert "num_generations" in found.left[0].change
    readings = report.readings
    assert readings.groups == readings.equal_groups > 0
    assert readings.reward_mean is not None
    assert readings.reward_deviation is not None
    assert (readings.reward_mean.smallest, readings.reward_mean.largest, readings.reward_deviation.largest) == (1, 1, 0)


@pytest.mark.skipif(not SEES_REWARDS, reason="this release computes rewards and advantages in one method")
def test_rewards_are_those_of_the_reward_functions(build: Any) -> None:
    """Weighted and added up, as the trainer does it; groups are told by their own rewards."""
    given: list[list[float]] = []

    def half_the_groups(completions: Any, **_: Any) -> list[float]:
        rewards = [float(place % 4) if place < 4 else 2.0 for place in range(len(completions))]
        given.append(rewards)
        return rewards

    def doubled(completions: Any, **_: Any) -> list[float]:
        return [2.0] * len(completions)

    settings = {"reward": [half_the_groups, doubled], "reward_weights": [1.0, 0.5]}
    readings = judged(build, max_steps=4, learning_rate=1e-5, **settings).readings
    assert given
    assert all(len(rewards) == 8 for rewards in given)
    assert (readings.groups, readings.equal_groups) == (2 * len(given), len(given))
    assert readings.reward_mean is not None
    assert readings.reward_mean.mean == pytest.approx((1.5 + 2.0) / 2 + 1.0)


def test_a_healthy_run_shows_no_symptom_and_is_near_to_published_ones(build: Any) -> None:
    report = judged(build, max_steps=16, learning_rate=1e-3, num_iterations=2, beta=0.04, rows=96)
    assert report.verdict == "PASS"
    assert not report.health
    assert not [each.name for each in why(report, knobs=index.knobs_of(report.schedule)) if each.shown]
    held = measured(report)
    assert {"|log ratio|", "learning rate", "gradient norm", "KL to reference", "tokens a sample"} <= held.keys()
    assert not [left for left in answer(report, "kl-explodes").left if left.weight == 2]
