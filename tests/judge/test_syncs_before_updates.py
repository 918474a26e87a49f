"""Weights that are synced before the updates of each rollout, as where the next rollout is generated meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.record.events import MicroBatch, Refresh, Rollout, RunEnded, RunStarted, Update, WeightSync
from tests.scripted_phases import phase_plan

if TYPE_CHECKING:
    from rlstep_hooks.record.events import AnyEvent


def made(*, source: str = "recompute", left_out: int | None = None) -> list[tuple[str, int | None]]:
    """Codes and rollouts of the alarms about a run of three rollouts, of which one lacks its sync."""
    plan = phase_plan(
        rollouts=3, syncs="first_and_before_updates", max_age=1, max_age_updates=2, old_logprob_source=source
    )
    events: list[AnyEvent] = [RunStarted(run="r", rank=0, world_size=1, schedule=plan), WeightSync(policy_version=0)]
    microbatches = 0
    for rollout in range(3):
        version = rollout * 2
        events.append(Rollout(index=rollout, samples=8, policy_version=version, sampler_version=max(version - 2, 0)))
        if rollout != left_out:
            events.append(WeightSync(policy_version=version))
        if source == "recompute":
            events.append(Refresh(rollout=rollout, samples=8, positions=64, policy_version=version))
        for update in range(2):
            for _ in range(2):
                now = version + update
                old = version if source == "recompute" else None
                events.append(MicroBatch(index=microbatches, samples=2, policy_version=now, old_version=old))
                microbatches += 1
            events.append(Update(index=version + update, version=version + update + 1, microbatches=2))
    events.append(RunEnded(status="completed", updates=6))
    judge = Judge()
    for event in events:
        judge.observe(event)
    return [(found.code, found.where.rollout) for found in judge.report().findings if found.severity != "info"]


@pytest.mark.parametrize("source", ["recompute", "engine"])
def test_such_a_run_is_as_planned(source: str) -> None:
    assert made(source=source) == []


@pytest.mark.parametrize("source", ["recompute", "engine"])
def test_a_sync_that_is_left_out_is_named_and_nothing_else(source: str) -> None:
    assert made(source=source, left_out=1) == [("RLS405", 1)]
