"""The rewards of all processes, as each of them gathered them: only joined records say whether all have the same.

Each process compares its own rewards with what its functions gave. Where all have the same ones, those of the others are right too.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.data.advantages import RewardsMoved
from rlstep_hooks.planning.finding import LISTED_ROLLOUTS, Finding, Where
from rlstep_hooks.record.events import Measured
from rlstep_hooks.record.marked import events_with

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def read_gathered(path: Path) -> dict[int, int]:
    """The checksums of a record, by rollout; damaged lines are passed over."""
    rollouts = (of for event in events_with(("all_rewards",), Measured, path) for of in event.rollouts)
    return {of.index: of.all_rewards for of in rollouts if of.all_rewards is not None}


def compare_gathered(gathered: Mapping[int, Mapping[int, int]]) -> list[Finding]:
    """Compare what all processes gathered, rollout by rollout.

    Args:
        gathered: The checksums that the record of each rank has, by rank.

    Returns:
        A finding at the first rollout of which two processes have other rewards; none where there is no such rollout.
    """
    apart: dict[int, tuple[int, int]] = {}
    for rollout in sorted({rollout for of in gathered.values() for rollout in of}):
        seen = {rank: of[rollout] for rank, of in sorted(gathered.items()) if rollout in of}
        usual = Counter(seen.values()).most_common(1)[0][0]
        like_most = next(rank for rank, checksum in seen.items() if checksum == usual)
        if other := [rank for rank, checksum in seen.items() if checksum != usual]:
            apart[rollout] = other[0], like_most
    return [_finding(apart)] if apart else []


def _finding(apart: Mapping[int, tuple[int, int]]) -> Finding:
    """The finding about rollouts, of each of which a rank has other rewards than another one."""
    rollout, (rank, other) = next(iter(apart.items()))
    return Finding(
        code=RewardsMoved.code,
        severity=RewardsMoved.severity,
        title=RewardsMoved.title,
        expected="the same rewards of all processes' samples on each of them",
        observed=f"rank {rank} has others than rank {other}",
        where=Where(rollout=rollout, rank=rank),
        why="means and deviations of groups and rollouts are taken over rewards that samples of other processes were not given",
        fix="look at how rewards are gathered over the processes, and at what changes them between that and the advantages",
        occurrences=len(apart),
        rollouts=tuple(apart)[:LISTED_ROLLOUTS],
    )
