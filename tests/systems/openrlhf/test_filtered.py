"""Groups that OpenRLHF's filter lets in, without a launch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from rlstep_hooks.systems.openrlhf.observe.filtered import GroupFilter


def filter_of(*, on: bool = True, low: float = 0.0, high: float = 1.0) -> GroupFilter:
    algo = SimpleNamespace(dynamic_filtering_enable=on, dynamic_filtering_range=(low, high))
    return GroupFilter(SimpleNamespace(algo=algo, rollout=SimpleNamespace(n_samples_per_prompt=2)))


def found(scores: list[tuple[Any, Any]], trained: list[int], **more: Any) -> tuple[int, int, int] | None:
    """What a filter finds of groups with these scores, of which some are trained."""
    followed, groups = filter_of(**more), [(object(), object()) for _ in scores]
    followed.begins()
    for samples, of_group in zip(groups, scores, strict=True):
        for sample, score in zip(samples, of_group, strict=True):
            followed.answered(sample, score)
    followed.generated([sample for place in trained for sample in groups[place]])
    return followed.take()


def test_groups_within_the_bounds_are_trained_and_no_others() -> None:
    assert found([(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)], [1]) == (3, 0, 0)


def test_groups_on_the_wrong_side_are_counted() -> None:
    assert found([(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)], [0, 2]) == (3, 2, 1)


def test_a_group_without_scores_is_trained() -> None:
    assert found([(None, None), (0.0, None)], [0, 1]) == (2, 0, 0)


def test_a_mean_that_rounding_puts_to_either_side_is_not_compared() -> None:
    assert found([(0.3800001, 0.38)], [], low=0.38) == (0, 0, 0)


def test_nothing_is_compared_without_a_filter() -> None:
    assert found([(0.0, 0.0)], [0], on=False) is None
