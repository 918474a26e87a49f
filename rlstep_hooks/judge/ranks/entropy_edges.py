"""The tokens that processes train for their high entropies: only joined records say whether one threshold divided those of all.

TRL trains the tokens whose entropies are among the highest of all processes' micro-batches (`top_entropy_quantile`;
`get_high_entropy_mask` of grpo_trainer.py 1.16.0:1380). One threshold leaves out nothing above what it keeps, on whichever process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.rules.loss.formula import LossScale
from rlstep_hooks.planning.finding import Finding, Where
from rlstep_hooks.record.events import Measured
from rlstep_hooks.record.marked import events_with

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class Edges(msgspec.Struct, frozen=True):
    """What one process trained and left out in one micro-batch; None where it did not do so with any token."""

    least_kept: float | None
    most_left: float | None


def read_entropy_edges(path: Path) -> dict[int, Edges]:
    """What a record says, by micro-batch; damaged lines are passed over."""
    return {
        of.index: Edges(of.least_kept_entropy, of.most_left_entropy)
        for event in events_with(("least_kept_entropy", "most_left_entropy"), Measured, path)
        for of in event.microbatches
    }


def compare_entropy_edges(edges: Mapping[int, Mapping[int, Edges]]) -> list[Finding]:
    """Compare what all processes left out and trained, micro-batch by micro-batch.

    Args:
        edges: What the record of each rank says, by rank.

    Returns:
        A finding at the first micro-batch in which a process left out a token of a higher entropy than another trained; none where
        there is no such micro-batch. Numbers of a record are rounded, which changes no order.
    """
    wrong: list[Finding] = []
    for microbatch in sorted({microbatch for of in edges.values() for microbatch in of}):
        seen = [(rank, of[microbatch]) for rank, of in sorted(edges.items()) if microbatch in of]
        kept = [(of.least_kept, rank) for rank, of in seen if of.least_kept is not None]
        left = [(of.most_left, rank) for rank, of in seen if of.most_left is not None]
        if kept and left and max(left)[0] > min(kept)[0]:
            wrong.append(_finding(microbatch, max(left), min(kept)))
    return [msgspec.structs.replace(wrong[0], occurrences=len(wrong))] if wrong else []


def _finding(microbatch: int, left: tuple[float, int], kept: tuple[float, int]) -> Finding:
    return Finding(
        code=LossScale.code,
        severity="error",
        title=LossScale.title,
        expected="the tokens with the highest entropies of all processes' micro-batches trained",
        observed=f"rank {left[1]} leaves out a token of entropy {left[0]:.4g}, and rank {kept[1]} trains one of {kept[0]:.4g}",
        where=Where(microbatch=microbatch, rank=left[1]),
        why=(
            "the mask of this process is no threshold of entropies: it keeps lower ones than it leaves out"
            if left[1] == kept[1]
            else "the threshold of the entropies is not one of all processes, as where each takes a share of its own tokens"
        ),
        fix="look at where entropies are gathered over the processes, and at what changes the mask before the loss",
    )
