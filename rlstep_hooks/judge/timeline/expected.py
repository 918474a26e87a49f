"""What a plan says a process will show: one type for each kind of event."""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal["policy", "critic"]


class ExpectedSync(msgspec.Struct, frozen=True, gc=False, tag="weight_sync"):
    """Weights synced to the rollout engine."""

    version: int
    """Policy version that is synced."""


class ExpectedRollout(msgspec.Struct, frozen=True, gc=False, tag="rollout"):
    """One generation phase."""

    samples: int | None
    """Samples that this process generates (all of them where one controller does); None where the data decides."""
    version: int
    """Policy version at the time."""
    reference: bool
    """Whether reference log-probs are computed with it."""


class ExpectedRefresh(msgspec.Struct, frozen=True, gc=False, tag="refresh"):
    """One computation of old log-probs."""

    version: int
    """Policy version that computes them."""


class ExpectedMicroBatch(msgspec.Struct, frozen=True, gc=False, tag="microbatch"):
    """One forward and backward."""

    samples: int | None
    """Samples that this process trains; None where token counts decide how a mini-batch is cut."""
    lag: int | None
    """Updates since the refresh of these samples, or since their rollout where nothing is refreshed; None for a critic."""
    role: Role = "policy"
    at_most: int | None = None
    """Where token counts decide: samples of the mini-batch that are left."""
    may_end: bool = False
    """Whether the updates on this rollout may end here instead (an early stop)."""


class ExpectedUpdate(msgspec.Struct, frozen=True, gc=False, tag="update"):
    """One optimizer step."""

    microbatches: int | None
    """Micro-batches accumulated behind it; None where token counts decide."""
    role: Role = "policy"


class ExpectedEpochEnd(msgspec.Struct, frozen=True, gc=False, tag="epoch_end"):
    """The end of a pass of the loader (also when training ends within it)."""

    epoch: int
    """Passes completed, this one included."""


class ExpectedEnd(msgspec.Struct, frozen=True, gc=False, tag="run_ended"):
    """The end of training."""

    updates: int
    """Windows closed in the whole run."""


ExpectedEvent = (
    ExpectedSync
    | ExpectedRollout
    | ExpectedRefresh
    | ExpectedMicroBatch
    | ExpectedUpdate
    | ExpectedEpochEnd
    | ExpectedEnd
)

Ended = Literal["ended"]

Outcome = bool | int | Ended | None
"""What a timeline is told of its expectation: whether an update was applied, the samples of a micro-batch or of a rollout, or that the
updates on this rollout ended before it."""
