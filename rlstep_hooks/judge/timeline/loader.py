"""The timeline of a run that its loader drives: both rollouts and updates follow from the number of micro-batches (TRL)."""

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
    """Windows closed so far (equal to the updates, unless one was skipped)."""
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
    """Policy versions that sampled the rollouts of the current cycle; empty if all are of `version`."""
    regenerates: bool = False
    """Whether the samples of the current cycle must be generated again first (they were not saved)."""

    def rollouts(self, schedule: Schedule) -> int:
        """Rollouts made so far, without one that must be generated again."""
        if schedule.microbatches_per_epoch is None or not (self.epoch or self.epoch_microbatches):
            made = self.updates * schedule.window + self.window
        else:
            made = self.epoch * schedule.microbatches_per_epoch + self.epoch_microbatches
        begun = 0 if self.regenerates else min(self.cycle, schedule.rollouts_per_cycle)
        return (made - self.cycle) // schedule.microbatches_per_cycle * schedule.rollouts_per_cycle + begun


def loader_events(schedule: Schedule, start: LoaderPosition | None = None) -> Generator[ExpectedEvent, Outcome, None]:
    """Every event that one process should show, in order.

    Send False for an `ExpectedUpdate` that was skipped: the policy version and the lags then stay. A run of unknown length yields for
    ever; without known rows, a pass of the loader never ends.

    Args:
        schedule: The plan.
        start: Where to begin; None for the start of training.
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
    # Made once and reused while nothing changes: this loop turns once per micro-batch of a run.
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
    """A process's position in its run, followed from its events."""

    def __init__(self, schedule: Schedule, start: LoaderPosition) -> None:
        self.start = start
        self.rollouts = start.rollouts(schedule)
        self.microbatches = 0
        self.updates = start.updates
        self.epoch = start.epoch
        self._schedule = schedule
        self._closed = start.updates
        self._version = start.version
        self._sampled = start.sampled
        # Each is the count of micro-batches at which something began.
        self._window_began = -start.window
        self._boundary = -(start.epoch_microbatches % schedule.window)
        self._cycle_began = -start.cycle
        self._epoch_began = -start.epoch_microbatches

    # Move past one event.

    def rollout(self, event: Rollout) -> None:
        """Move past a rollout; it may begin a cycle."""
        if self._cycle >= self._schedule.rollouts_per_cycle or self._cycle == 0:
            self._cycle_began = self.microbatches
            self._sampled = (event.policy_version,) * self._schedule.rollouts_per_cycle
        self.rollouts += 1

    def microbatch(self, event: MicroBatch) -> None:
        """Move past a micro-batch."""
        self.microbatches += 1

    def update(self, event: Update) -> None:
        """Move past an update, made or skipped."""
        self.updates += 1
        self._closed += event.by_loop
        self._version = event.version
        self._window_began = self._boundary = self.microbatches

    def epoch_end(self, event: EpochEnd) -> None:
        """Move past the end of a pass."""
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
        """Micro-batches in this pass."""
        return self.microbatches - self._epoch_began

    def at_rollout(self, event: Rollout, *, passed: bool = False) -> LoaderPosition:
        """The position just before a rollout, from which a timeline can continue.

        Args:
            event: The rollout.
            passed: Whether the cursor has moved past it already; the position is the same.
        """
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
        """The position after a pass that ended unplanned, on request or with a stream; None if its end could have been planned."""
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
        """Micro-batches in this pass, aligned with its windows: a micro-batch lost or seen twice must not shift all later updates."""
        size, cycle = self._schedule.window, self._schedule.microbatches_per_cycle
        if self._schedule.partial_window == "carry":
            return self._in_epoch
        near = range(max(self._in_epoch - size + 1, 0), self._in_epoch + size)
        fitting = [n for n in near if n % size == self._since_boundary % size]
        return min(fitting, key=lambda n: (n % cycle != 0, abs(n - self._in_epoch)))
