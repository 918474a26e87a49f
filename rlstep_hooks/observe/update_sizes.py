"""The sizes of an update that a loss is divided by, where they are those of all processes.

A process knows what its loss was given, and how many tokens and samples its own micro-batches have. Only all records together say
whether the one is the sum of the other (`rlstep_hooks.judge.ranks.update_divisors`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlstep_hooks.observe.losses import Divisor


@dataclass(frozen=True)
class UpdateSizes:
    """Tokens of an update that count, and samples that have one; None where they are not known."""

    tokens: float | None
    samples: float | None


@dataclass(frozen=True)
class DividedPart:
    """Micro-batches that share divisors, by places that are the same on all processes, also where one of them made fewer updates."""

    update: int
    """The update, among those of the role."""
    rollout: int
    """How many rollouts the role trained before this one."""
    part: int
    """Which part of the rollout it is, in the order in which they are trained."""


def divisor_fields(
    divided_by: frozenset[Divisor], *, given: UpdateSizes, own: UpdateSizes, of: DividedPart
) -> dict[str, Any]:
    """The fields of `LossNumbers` that say what a loss was divided by.

    Args:
        divided_by: What the loss is divided by.
        given: What it was given as the sizes of the update on all processes.
        own: The sizes of the update on this process.
        of: Which micro-batches these are.

    Returns:
        No field where nothing is known that can be joined.
    """
    fields: dict[str, Any] = {}
    if "tokens" in divided_by and given.tokens is not None and own.tokens is not None:
        fields |= {"divisor_tokens": given.tokens, "own_tokens": round(own.tokens)}
    if "samples" in divided_by and given.samples is not None and own.samples is not None:
        fields |= {"divisor_samples": given.samples, "own_samples": round(own.samples)}
    places = {"divisor_update": of.update, "divisor_rollout": of.rollout, "divisor_part": of.part}
    return fields | places if fields else {}
