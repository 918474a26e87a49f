"""The events that a plan expects of a process: one type for each kind."""

from __future__ import annotations

from typing import Literal

import msgspec

from rlstep_hooks.record.values import Role


class ExpectedSync(msgspec.Struct, frozen=True, gc=False, tag="weight_sync"):
    """Weights are brought to the rollout engine."""

    version: int
    """Policy version of the weights."""


class ExpectedRollout(msgspec.Struct, frozen=True, gc=False, tag="rollout"):
    """One generation phase."""

    samples: int | None
    """Samples that this process generates (all samples, if one controller generates them); None if the data decide."""
    version: int
    """Policy version at its time."""
    reference: bool
    """Whether reference log-probs are computed with it."""


class ExpectedRefresh(msgspec.Struct, frozen=True, gc=False, tag="refresh"):
    """One computation of old log-probs."""

    version: int
    """Policy version that computes them."""


class ExpectedMicroBatch(msgspec.Struct, frozen=True, gc=False, tag="microbatch"):
    """One forward and backward."""

    samples: int | None
    """Samples that this process trains on; None if token counts decide how a mini-batch is cut."""
    lag: int | None
    """Updates since the refresh of these samples (since their rollout, if nothing is refreshed); None for a critic."""
    role: Role = "policy"
    at_most: int | None = None
    """Samples left in the mini-batch, if token counts decide how it is cut."""
    may_end: bool = False
    """Whether the updates on this rollout may end here instead (early stop)."""


class ExpectedUpdate(msgspec.Struct, frozen=True, gc=False, tag="update"):
    """One update."""

    microbatches: int | None
    """Micro-batches accumulated in it; None if token counts decide."""
    role: Role = "policy"


class ExpectedEpochEnd(msgspec.Struct, frozen=True, gc=False, tag="epoch_end"):
    """The end of one pass of the loader (also if training ends during the pass)."""

    epoch: int
    """Passes completed, including this one."""


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
"""The outcome of an expectation, as a timeline is told: whether an update was applied, the samples of a micro-batch or of a rollout,
or that the updates on this rollout ended before it."""
