"""Samples that lag: their age in the queue, their stamps, and their distance from the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.record.events import Queued, Rollout
from tests.judge.rule_examples import changed, judged, measured, run

if TYPE_CHECKING:
    from rlstep_hooks.planning.finding import Finding


def found(code: str, **queue: Any) -> list[Finding]:
    return [f for f in judged(changed(run(), Rollout, 2, queue=Queued(**queue))) if f.code == code]


@pytest.mark.parametrize(
    ("queue", "observed"),
    [
        ({"ahead": 4}, "4 samples stamped with weights that no engine had"),
        ({"behind": 4}, "4 samples of older weights"),
        ({"waited": ((0, 6), (2, 2))}, "2 prompts that were in it for up to 2"),
    ],
)
def test_stamps_and_times_in_the_queue(queue: dict[str, Any], observed: str) -> None:
    (finding,) = found("RLS402", **queue)
    assert observed in finding.observed
    assert (finding.severity, finding.where.rollout) == ("error", 2)


def test_a_completion_that_began_long_ago_is_within_a_bound_on_the_time_in_the_queue() -> None:
    late = changed(run(), Rollout, 2, queue=Queued(waited=((0, 8),)), sampler_version=0)
    assert [f.code for f in judged(late) if f.code == "RLS402"] == []
    (finding,) = [f for f in judged(changed(run(), Rollout, 2, sampler_version=0)) if f.code == "RLS402"]
    assert "behind" in finding.observed


def distance(**values: Any) -> list[Finding]:
    """What is found where the samples of a rollout come of weights before those that computed the trainer's log-probs."""
    late = changed(run(), Rollout, 2, queue=Queued(waited=((0, 8),)), sampler_version=0)
    return [f for f in judged(measured(late, "rollouts", 2, **values)) if f.code == "RLS403"]


def test_the_distance_of_older_samples_is_their_age_unless_a_cause_is_shown() -> None:
    assert distance(sampler_gap_mean=0.3, sampler_gap_max=1.0) == []
    (named,) = distance(sampler_gap_mean=0.3, sampler_gap_max=1.0, sampler_gap_fit="temperature 0.6")
    assert "temperature 0.6" in named.observed


def test_samples_of_the_same_weights_are_compared_where_others_are_older() -> None:
    assert distance(sampler_gap_mean=0.3, sampler_gap_max=1.0, sampler_gap_fresh=1e-7) == []
    (finding,) = distance(sampler_gap_mean=0.3, sampler_gap_max=1.0, sampler_gap_fresh=0.2)
    assert finding.observed.startswith("mean 0.2")
