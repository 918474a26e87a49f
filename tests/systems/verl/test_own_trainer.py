"""A trainer whose class overrides `fit`: its record has an end and a verdict, however it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.record.events import RunEnded
from tests.systems.verl.audited import Expected, audited, problems
from tests.systems.verl.launch import Assets, grpo
from tests.systems.verl.own_trainer import MODULE, OWN_BUILDING, RAISES_AT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.thorough
def test_a_loop_of_ones_own_is_followed_to_its_end(assets: Assets, tmp_path: Path) -> None:
    overrides = grpo(assets) | {"trainer.use_v1": False, "trainer.total_training_steps": 3}
    run = audited(overrides, tmp_path, modules=[MODULE])
    Expected(rollouts=3, updates=6, masks=False, not_drawn="a loop of one's own").check(run)
    assert run.report.complete


@pytest.mark.thorough
def test_a_loop_of_ones_own_that_raises(assets: Assets, tmp_path: Path) -> None:
    """It also loads checkpoints in its own way."""
    overrides = grpo(assets) | {"trainer.use_v1": False}
    run = audited(overrides, tmp_path, modules=[MODULE], environment={RAISES_AT: "3", OWN_BUILDING: "1"})
    assert run.outcome.status != 0, run.outcome.tail
    assert "a loop of one's own broke" in run.outcome.output
    (ended,) = [event for event in run.record("controller") if isinstance(event, RunEnded)]
    assert ended.status == "raised"
    assert "a loop of one's own broke" in ended.error
    assert run.report.verdict == "NOT_EVALUATED"
    assert problems(run.report) == []
    assert (run.report.counts.rollouts, run.report.counts.updates) == (2, 4)
