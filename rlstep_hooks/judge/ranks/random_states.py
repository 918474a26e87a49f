"""The states of the random generators that processes drew their samples with: only joined records say whether two are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.outcome import RuleOutcome
from rlstep_hooks.judge.rules.data.copies import RanksDrawAlike
from rlstep_hooks.planning.finding import Finding, Where
from rlstep_hooks.record.events import Rollout
from rlstep_hooks.record.marked import events_with

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def read_random_states(path: Path) -> dict[int, int]:
    """The states of a record, by rollout; damaged lines are passed over."""
    return {
        event.index: event.random_state
        for event in events_with(("random_state",), Rollout, path)
        if event.purpose == "training" and event.random_state is not None
    }


def compare_random_states(
    states: Mapping[int, Mapping[int, int]], world_size: int
) -> tuple[RuleOutcome, list[Finding]]:
    """Compare the states of all processes, rollout by rollout.

    Args:
        states: The states that the record of each rank has, by rank.
        world_size: Processes of the run.

    Returns:
        The outcome, and a finding at the first rollout in which two processes have the same state.
    """
    code, title = RanksDrawAlike.code, RanksDrawAlike.title
    checks, alike = 0, []
    for rollout in sorted({rollout for of in states.values() for rollout in of}):
        first: dict[int, int] = {}
        there = [rank for rank in sorted(states) if rollout in states[rank]]
        checks += len(there) > 1
        for rank in there:
            other = first.setdefault(states[rank][rollout], rank)
            if other != rank:
                alike.append((rollout, rank, other))
    if not checks:
        reason = RanksDrawAlike.nothing_seen
        return RuleOutcome(code=code, title=title, verdict="NOT_EVALUATED", reason=reason, idle=True), []
    findings = [_finding(*alike[0], world_size, rollouts={rollout for rollout, _, _ in alike})] if alike else []
    return RuleOutcome(code=code, title=title, verdict="FAIL" if alike else "PASS", checks=checks), findings


def _finding(rollout: int, rank: int, other: int, world_size: int, rollouts: set[int]) -> Finding:
    return Finding(
        code=RanksDrawAlike.code,
        severity=RanksDrawAlike.severity,
        title=RanksDrawAlike.title,
        expected=f"random numbers of its own on each of {world_size} ranks",
        observed=f"rank {rank} begins to draw with the random state of rank {other}",
        where=Where(rollout=rollout, rank=rank),
        why="completions of one prompt on these ranks are copies of each other, and no others are independent",
        fix="give each rank a seed of its own: set_seed(seed, device_specific=True), and look for a seed that is set after the "
        "trainer is made",
        occurrences=len(rollouts),
        rollouts=tuple(sorted(rollouts)),
    )
