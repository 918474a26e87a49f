"""The timeline of a run that its loader drives: micro-batches set off rollouts and updates alike (TRL)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.timeline.expected import (
    ExpectedEnd,
    ExpectedEpochEnd,
    ExpectedEvent,
    ExpectedMicroBatch,
    ExpectedRefresh,
    ExpectedRollout,
    ExpectedUpdate,
    Outcome,
)
from rlstep_hooks.planning.counting import countable

if TYPE_CHECKING:
    from collections.abc import Generator

    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.events import EpochEnd, MicroBatch, Rollout, Update


class LoaderPosition(msgspec.Struct, frozen=True, kw_only=True):
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


def loader_events(schedule: Schedule, start: LoaderPosition | None = None) -> Generator[ExpectedEvent, Outcome, None]:
    """Every event that one process should show, in order.

    Send False for an `ExpectedUpdate` that turned out to be skipped: the policy version then stays, and lags follow. A run
    without a known length yields for ever; one without known rows never ends a pass of the loader.

    Args:
        schedule: The plan.
        start: Where to begin; the start of training if left out.
    """
    position = start or LoaderPosition()
    updates, version = position.updates, position.version
    cycle, window = position.cycle, position.window
    epoch, in_epoch = position.epoch, position.epoch_microbatches
    slots = schedule.slots_per_cycle
    samples_rollout = schedule.samples_per_rollout // schedule.world_size
    samples_microbatch = (schedule.samples_per_microbatch or 0) // schedule.world_size
    refreshes = schedule.old_logprob_source in ("at_rollout", "recompute")
    reference = schedule.reference_source == "at_rollout"
    sampled_at = list(position.sampled) or [version] * countable(schedule.rollouts_per_cycle, "rollouts of one cycle")
    regenerates = position.regenerates

    rollouts_per_cycle, cycle_length = schedule.rollouts_per_cycle, schedule.microbatches_per_cycle
    microbatches_per_epoch, full_window, planned = schedule.microbatches_per_epoch, schedule.window, schedule.updates
    flushes = schedule.partial_window == "flush"
    # Made once and used again while nothing changes: this loop turns once for each micro-batch of a run.
    microbatch = ExpectedMicroBatch(samples_microbatch, 0)
    update = ExpectedUpdate(full_window)

    while planned is None or updates < planned:
        if cycle < rollouts_per_cycle or regenerates:
            regenerates = False
            if cycle < rollouts_per_cycle:
                sampled_at[cycle] = version
            yield ExpectedRollout(samples_rollout, version, reference)
            if refreshes:
                yield ExpectedRefresh(version)
        lag = version - sampled_at[(cycle % slots) * rollouts_per_cycle // slots]
        if lag != microbatch.lag:
            microbatch = ExpectedMicroBatch(samples_microbatch, lag)
        yield microbatch
        cycle = (cycle + 1) % cycle_length
        window += 1
        in_epoch += 1
        epoch_ends = in_epoch == microbatches_per_epoch
        if in_epoch % full_window == 0 or (epoch_ends and flushes):
            if window != update.microbatches:
                update = ExpectedUpdate(window)
            applied = yield update
            updates += 1
            version += applied is not False
            window = 0
        if epoch_ends or updates == planned:
            epoch += 1
            in_epoch = 0
            yield ExpectedEpochEnd(epoch)
    yield ExpectedEnd(updates)


class LoaderCursor:
    """Where in its run a process stands, from the events that it showed."""

    def __init__(self, schedule: Schedule, start: LoaderPosition) -> None:
        self.start = start
        self.rollouts = 0
        self.microbatches = 0
        self.updates = start.updates
        self.epoch = start.epoch
        self._schedule = schedule
        self._closed = start.updates
        self._version = start.version
        self._sampled = start.sampled
        # What began how many micro-batches ago: each is kept as the count at which it began.
        self._window_began = -start.window
        self._boundary = -(start.epoch_microbatches % schedule.window)
        self._cycle_began = -start.cycle
        self._epoch_began = -start.epoch_microbatches

    # Go on by one event.

    def rollout(self, event: Rollout) -> None:
        """A rollout, which may begin a cycle."""
        if self._cycle >= self._schedule.rollouts_per_cycle or self._cycle == 0:
            self._cycle_began = self.microbatches
            self._sampled = (event.policy_version,) * self._schedule.rollouts_per_cycle
        self.rollouts += 1

    def microbatch(self, event: MicroBatch) -> None:
        """A micro-batch."""
        self.microbatches += 1

    def update(self, event: Update) -> None:
        """An optimizer step, made or skipped."""
        self.updates += 1
        self._closed += event.by_loop
        self._version = event.version
        self._window_began = self._boundary = self.microbatches

    def epoch_end(self, event: EpochEnd) -> None:
        """The end of a pass."""
        self.epoch = event.epoch
        self._epoch_began = self._boundary = self.microbatches

    @property
    def _window(self) -> int:
        """Micro-batches since the last update."""
        return self.microbatches - self._window_began

    @property
    def _since_boundary(self) -> int:
        """Micro-batches since the last update or the last end of a pass."""
        return self.microbatches - self._boundary

    @property
    def _cycle(self) -> int:
        """Micro-batches since the last cycle of rollouts began."""
        return self.microbatches - self._cycle_began

    @property
    def _in_epoch(self) -> int:
        """Micro-batches of this pass."""
        return self.microbatches - self._epoch_began

    def at_rollout(self, event: Rollout) -> LoaderPosition:
        """Where a timeline goes on that lost its thread, at the next rollout."""
        several = self._schedule.rollouts_per_cycle > 1
        return LoaderPosition(
            updates=self._closed,
            version=event.policy_version,
            cycle=self._window % self._schedule.rollouts_per_cycle if several else 0,
            window=self._window if self._schedule.partial_window == "carry" else self._since_boundary,
            epoch=self.epoch,
            epoch_microbatches=self._in_step(),
        )

    def after_unplanned_epoch_end(self, event: EpochEnd) -> LoaderPosition | None:
        """Where to go on after a pass that ended where nobody could plan it: on request, or with a stream; None if it could."""
        if not event.stopping and self._schedule.microbatches_per_epoch is not None:
            return None
        return LoaderPosition(
            updates=self._closed,
            version=self._version,
            cycle=self._cycle % self._schedule.microbatches_per_cycle,
            window=self._window,
            epoch=self.epoch + 1,
            epoch_microbatches=0,
            sampled=self._sampled,
        )

    def _in_step(self) -> int:
        """Micro-batches of this pass, in step with its windows: one lost or seen twice must not shift all later updates."""
        size, cycle = self._schedule.window, self._schedule.microbatches_per_cycle
        if self._schedule.partial_window == "carry":
            return self._in_epoch
        near = range(max(self._in_epoch - size + 1, 0), self._in_epoch + size)
        fitting = [n for n in near if n % size == self._since_boundary % size]
        return min(fitting, key=lambda n: (n % cycle != 0, abs(n - self._in_epoch)))
