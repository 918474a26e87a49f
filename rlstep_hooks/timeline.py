"""The expected timeline: an executable specification of a Schedule.

`expected_events` yields, in order, every event that one process should show. Totals are sums over it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Generator

    from rlstep_hooks.schedule import Schedule


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Where in the run a timeline starts. All zeros is the start of training."""

    updates: int = 0
    """Windows closed so far (equals the updates, unless one was skipped)."""
    version: int = 0
    """Policy version: updates that were applied."""
    cycle: int = 0
    """Micro-batches since the last cycle of rollouts began."""
    window: int = 0
    """Micro-batches accumulated since the last update."""
    epoch: int = 0
    """Passes of the loader completed."""
    epoch_microbatches: int = 0
    """Micro-batches since this pass of the loader began."""
    sampled: tuple[int, ...] = ()
    """Policy versions that sampled the rollouts of the cycle already begun; empty if all are of `version`."""
    regenerates: bool = False
    """Whether the samples of a cycle already begun must be generated again first (they were not saved)."""


class ExpectedRollout(msgspec.Struct, frozen=True, gc=False, tag="rollout"):
    """One generation phase."""

    samples: int
    """Samples that this process generates."""
    version: int
    """Policy version that samples them."""
    reference: bool
    """Whether reference log-probs are computed with it."""


class ExpectedRefresh(msgspec.Struct, frozen=True, gc=False, tag="refresh"):
    """One computation of old log-probs."""

    version: int
    """Policy version that computes them."""


class ExpectedMicroBatch(msgspec.Struct, frozen=True, gc=False, tag="microbatch"):
    """One forward and backward."""

    samples: int
    """Samples that this process trains."""
    lag: int
    """Updates since the refresh of these samples, or since their rollout where nothing is refreshed."""


class ExpectedUpdate(msgspec.Struct, frozen=True, gc=False, tag="update"):
    """One optimizer step."""

    microbatches: int
    """Micro-batches accumulated behind it."""


class ExpectedEpochEnd(msgspec.Struct, frozen=True, gc=False, tag="epoch_end"):
    """The end of a pass of the loader (also when training ends within it)."""

    epoch: int
    """Passes completed, this one included."""


class ExpectedEnd(msgspec.Struct, frozen=True, gc=False, tag="run_ended"):
    """The end of training."""

    updates: int
    """Windows closed in the whole run."""


ExpectedEvent = ExpectedRollout | ExpectedRefresh | ExpectedMicroBatch | ExpectedUpdate | ExpectedEpochEnd | ExpectedEnd


def expected_events(schedule: Schedule, start: Position | None = None) -> Generator[ExpectedEvent, bool | None, None]:
    """Every event that one process should show, in order.

    Send False for an `ExpectedUpdate` that turned out to be skipped: the policy version then stays, and lags follow. A run
    without a known length yields for ever; one without known rows never ends a pass of the loader.

    Args:
        schedule: The plan.
        start: Where to begin; the start of training if left out.
    """
    position = start or Position()
    updates, version = position.updates, position.version
    cycle, window = position.cycle, position.window
    epoch, in_epoch = position.epoch, position.epoch_microbatches
    slots = schedule.slots_per_cycle
    samples_rollout = schedule.samples_per_rollout // schedule.world_size
    samples_microbatch = schedule.samples_per_microbatch // schedule.world_size
    refreshes = schedule.old_logprob_source in ("at_rollout", "recompute")
    reference = schedule.reference_source == "at_rollout"
    sampled_at = list(position.sampled) or [version] * schedule.rollouts_per_cycle
    regenerates = position.regenerates

    while schedule.updates is None or updates < schedule.updates:
        if cycle < schedule.rollouts_per_cycle or regenerates:
            regenerates = False
            if cycle < schedule.rollouts_per_cycle:
                sampled_at[cycle] = version
            yield ExpectedRollout(samples_rollout, version, reference)
            if refreshes:
                yield ExpectedRefresh(version)
        rollout = (cycle % slots) * schedule.rollouts_per_cycle // slots
        yield ExpectedMicroBatch(samples_microbatch, version - sampled_at[rollout])
        cycle = (cycle + 1) % schedule.microbatches_per_cycle
        window += 1
        in_epoch += 1
        epoch_ends = in_epoch == schedule.microbatches_per_epoch
        full = in_epoch % schedule.microbatches_per_update == 0
        if full or (epoch_ends and schedule.partial_window == "flush"):
            applied = yield ExpectedUpdate(window)
            updates += 1
            version += applied is not False
            window = 0
        if epoch_ends or updates == schedule.updates:
            epoch += 1
            in_epoch = 0
            yield ExpectedEpochEnd(epoch)
    yield ExpectedEnd(updates)
