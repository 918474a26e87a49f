"""The tokens that processes train for their high entropies: only joined records say whether these are the documented ones.

TRL trains the tokens whose entropies are at least a quantile of those of all processes' micro-batches, which torch.quantile takes in
float32 (`top_entropy_quantile`; `get_high_entropy_mask` of grpo_trainer.py 1.16.0:1380). So none of them is left out that has a higher
entropy than one that is trained, on whichever process, and as many are trained as the quantile leaves above it. Each process compares
its loss with the formula for the tokens that it keeps; these it takes from its trainer, and here they are judged.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.rules.loss.formula import LossScale
from rlstep_hooks.planning.finding import Finding, Where
from rlstep_hooks.record.events import Measured
from rlstep_hooks.record.marked import events_with

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from rlstep_hooks.judge.outcome import RuleOutcome

_ROUNDING = 2.0**-22
"""Relative rounding of the place of a quantile among its numbers, which torch computes in float32."""

NO_RECORDS = "which tokens have the highest entropies only the records of all processes say, and some are not here"


class Edges(msgspec.Struct, frozen=True):
    """What one process trained and left out in one micro-batch; None where it did not do so with any token."""

    least_kept: float | None
    most_left: float | None
    tokens: int
    """Tokens whose entropies count."""
    kept: int
    """Tokens that the rank trained."""
    at_least: int
    """Trained tokens whose entropy is the least of all that were trained."""


def read_entropy_edges(path: Path) -> dict[int, Edges]:
    """What a record says, by micro-batch; damaged lines are passed over."""
    return {
        of.index: Edges(
            of.least_kept_entropy,
            of.most_left_entropy,
            of.entropies,
            of.entropies_kept or 0,
            of.entropies_at_least or 0,
        )
        for event in events_with(("entropies",), Measured, path)
        for of in event.microbatches
        if of.entropies is not None
    }


def compare_entropy_edges(edges: Mapping[int, Mapping[int, Edges]], share: float) -> list[Finding]:
    """Compare what all processes left out and trained, micro-batch by micro-batch.

    Args:
        edges: What the record of each rank says, by rank.
        share: The share of the tokens that are to be trained.

    Returns:
        A finding at the first micro-batch in which a process left out a token of a higher entropy than another trained; where one
        threshold divides them all, one at the first in which another number of them was trained than the share; none where there is no
        such micro-batch. Numbers of a record are rounded, which changes no order.
    """
    apart: list[Finding] = []
    other: list[Finding] = []
    for microbatch in sorted({microbatch for of in edges.values() for microbatch in of}):
        seen = {rank: of[microbatch] for rank, of in sorted(edges.items()) if microbatch in of}
        kept = [(of.least_kept, rank) for rank, of in seen.items() if of.least_kept is not None]
        left = [(of.most_left, rank) for rank, of in seen.items() if of.most_left is not None]
        if kept and left and max(left)[0] > min(kept)[0]:
            apart.append(_apart(microbatch, max(left), min(kept)))
        elif len(seen) == len(edges) and not _is_share(list(seen.values()), share):
            other.append(_another_share(microbatch, list(seen.values()), share))
    found = apart or other
    return [msgspec.structs.replace(found[0], occurrences=len(found))] if found else []


def not_joined(
    rules: Iterable[RuleOutcome], edges: Mapping[int, Mapping[int, Edges]], world_size: int
) -> list[RuleOutcome]:
    """The outcomes of one process, where that of its loss says how many micro-batches no other record completed.

    Args:
        rules: The outcomes.
        edges: What the records that are here say, by rank.
        world_size: Processes of the run.
    """
    microbatches = {microbatch for of in edges.values() for microbatch in of}
    here = {microbatch for microbatch in microbatches if sum(microbatch in of for of in edges.values()) == world_size}
    return [
        _in_part(rule, len(here), len(microbatches)) if rule.code == LossScale.code and rule.verdict == "PASS" else rule
        for rule in rules
    ]


def _in_part(rule: RuleOutcome, joined: int, microbatches: int) -> RuleOutcome:
    if not joined:
        return msgspec.structs.replace(rule, verdict="NOT_EVALUATED", checks=0, missed=0, reason=NO_RECORDS)
    if joined == microbatches:
        return rule
    reasons = dict.fromkeys([*([rule.reason] if rule.reason else []), NO_RECORDS])
    return msgspec.structs.replace(rule, missed=rule.missed + microbatches - joined, reason="; ".join(reasons))


def _is_share(seen: list[Edges], share: float) -> bool:
    """Whether as many tokens are kept as the quantile leaves above it: those from the one at its place on, and of those that have the
    same entropy as the last of them all."""
    tokens, kept = sum(of.tokens for of in seen), sum(of.kept for of in seen)
    if not tokens:
        return not kept
    least = min((of.least_kept for of in seen if of.least_kept is not None), default=None)
    above = kept - sum(of.at_least for of in seen if of.least_kept == least)
    fewest, most = _bounds(tokens, share)
    return kept >= fewest and above < most


def _bounds(tokens: int, share: float) -> tuple[int, int]:
    """The fewest and the most tokens of different entropies that the quantile leaves, by the rounding of its place among them."""
    place = (1 - share) * (tokens - 1)
    return tokens - math.ceil(place * (1 + _ROUNDING)), tokens - math.floor(place * (1 - _ROUNDING))


def _apart(microbatch: int, left: tuple[float, int], kept: tuple[float, int]) -> Finding:
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


def _another_share(microbatch: int, seen: list[Edges], share: float) -> Finding:
    tokens, kept = sum(of.tokens for of in seen), sum(of.kept for of in seen)
    fewest, _ = _bounds(tokens, share)
    other_end = _is_share(seen, 1 - share)
    return Finding(
        code=LossScale.code,
        severity="error",
        title=LossScale.title,
        expected=f"{fewest} of the {tokens} tokens of all processes trained for their entropies",
        observed=f"{kept} of them",
        where=Where(microbatch=microbatch),
        why=f"that is a share of {kept / max(tokens, 1):.3g}, and {share:g} is configured"
        + (f": the quantile is taken at {share:g} in the place of {1 - share:g}" if other_end else ""),
        fix="look at the quantile that the entropies of all processes are divided at, and at which of them are gathered",
    )
