"""Masks behind a rejection of the configuration, as a controller compared them (RLS518)."""

from __future__ import annotations

import pytest

from rlstep_hooks.record.events import Rewarded, Rollout
from tests.judge.rule_examples import after, judged, run


def seen(**masks: object) -> list[str]:
    """What the findings about masks say was observed."""
    found = judged(after(run(), Rollout, 2, Rewarded(rollout=2, groups=16, samples=64, **masks)))  # type: ignore[arg-type]
    return [finding.observed for finding in found if finding.code == "RLS518"]


@pytest.mark.parametrize("like", ["nothing is taken out of them", "other tokens are taken out of them"])
def test_masks_of_another_rejection_are_named(like: str) -> None:
    assert seen(masks_wrong=4, masks_like=like) == [f"others in 4 of 64 samples: {like}"]


def test_masks_without_a_rejection_are_said_as_before() -> None:
    assert seen(masks_wrong=4) == ["others in 4 of 64 samples"]
    assert seen(masks_wrong=0) == []
