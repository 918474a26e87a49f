"""Events of what all ranks of a run should hold alike."""

from __future__ import annotations

from typing import Literal

from rlstep_hooks.record.event_base import Event
from rlstep_hooks.record.values import Role

Replica = Literal["weights", "frozen weights", "buffers", "reference"]
"""What all ranks hold alike: the model's trained weights, adapters included, its frozen ones, its buffers; the reference's weights."""
Moment = Literal["begin", "before", "after"]
"""When ranks look at what they hold: when training begins, right before the optimizer steps, or right after it."""


class ReplicaSums(Event, frozen=True, kw_only=True, gc=False, tag="replica_sums"):
    """What this rank holds of tensors that every rank should hold alike: a sum of the bits of each."""

    update: int
    """The update before or after whose step they were read; that which comes first when training begins."""
    moment: Moment
    kind: Replica
    role: Role = "policy"
    sums: tuple[int, ...] = ()
    """One number below 2**48 for each tensor, or for a few neighbouring tensors."""
    part: int | None = None
    """The part of each large tensor that the sums are taken over (`rlstep_hooks.record.cadence.PARTS`); None for all."""
    names: tuple[str, ...] = ()
    """Names of the tensors, when training begins."""
    device: str = ""
    """The kind of device that the tensors are on."""
