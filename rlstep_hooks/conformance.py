"""Expected against observed, one event at a time, in constant memory.

At the first event that differs the matcher says what was expected and what came. It then waits for the next rollout and goes
on from there with the state that was observed, so that one difference is reported once and what follows is still judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from rlstep_hooks.events import EpochEnd, MicroBatch, Refresh, Rollout, RunEnded, Update
from rlstep_hooks.report import Where
from rlstep_hooks.timeline import (
    ExpectedEnd,
    ExpectedEpochEnd,
    ExpectedEvent,
    ExpectedMicroBatch,
    ExpectedRefresh,
    ExpectedRollout,
    ExpectedUpdate,
    Position,
    expected_events,
)

if TYPE_CHECKING:
    from rlstep_hooks.schedule import Schedule

OrderedEvent = Rollout | Refresh | MicroBatch | Update | EpochEnd | RunEnded

_COUNTERPART: dict[type, type] = {
    Rollout: ExpectedRollout,
    Refresh: ExpectedRefresh,
    MicroBatch: ExpectedMicroBatch,
    Update: ExpectedUpdate,
    EpochEnd: ExpectedEpochEnd,
    RunEnded: ExpectedEnd,
}


class Difference(msgspec.Struct, frozen=True):
    """One point at which the run and its plan part."""

    expected: ExpectedEvent
    observed: OrderedEvent
    aspect: Literal["kind", "samples", "lag", "microbatches", "reference", "version"]
    """What differs: which event it is ("kind"), or one of its numbers."""
    where: Where


class Conformance:
    """Matches one process's events against its expected timeline."""

    def __init__(self, schedule: Schedule, start: Position) -> None:
        self.schedule = schedule
        self.checks = 0
        self.matched_since_difference = 0
        self._rollouts = 0
        self._microbatches = 0
        self._updates = start.updates
        self._closed = start.updates
        self._version = start.version
        self._window = start.window
        self._since_boundary = start.epoch_microbatches % schedule.microbatches_per_update
        self._cycle = start.cycle
        self._sampled = start.sampled
        self._epoch = start.epoch
        self._in_epoch = start.epoch_microbatches
        self._lost = False
        self._held: Difference | None = None
        self._restart(start)

    def _restart(self, position: Position) -> None:
        self._expected = expected_events(self.schedule, position)
        self._next: ExpectedEvent | None = next(self._expected)
        self._lost = False

    def _advance(self, applied: bool | None = None) -> None:
        try:
            self._next = self._expected.send(applied)
        except StopIteration:
            self._next = None

    def where(self, event: OrderedEvent | None = None) -> Where:
        """The place in the run of the event being looked at."""
        return Where(
            rollout=self._rollouts if isinstance(event, Rollout) else max(self._rollouts - 1, 0),
            update=self._updates,
            microbatch=self._microbatches,
            epoch=self._epoch,
        )

    def observe(self, event: OrderedEvent) -> list[Difference]:
        """Match one event.

        Returns:
            The differences found: none where the event is as planned or nothing can be said of it.
        """
        differences = self._settle(event)
        differences += self._match(event)
        self._count(event)
        return differences

    def _settle(self, event: OrderedEvent) -> list[Difference]:
        """Report a pass that ended because the run was over, held back until now: the end of training is what differs."""
        held, self._held = self._held, None
        if held is None:
            return []
        if isinstance(event, RunEnded):
            ended_by_wish = event.status == "raised" or event.stopped
            return [] if ended_by_wish else [msgspec.structs.replace(held, observed=event)]
        return [held]

    def _match(self, event: OrderedEvent) -> list[Difference]:
        if isinstance(event, RunEnded) and (event.status == "raised" or event.stopped):
            return []
        if isinstance(event, EpochEnd) and (event.stopping or self.schedule.microbatches_per_epoch is None):
            self._restart(self._observed_position(after_epoch=True))
            return []
        if self._lost:
            if not isinstance(event, Rollout):
                return []
            self._restart(self._observed_position_at_rollout(event))
        if self._next is None:
            return []
        differences: list[Difference] = []
        if isinstance(self._next, ExpectedRefresh) and not isinstance(event, Refresh):
            differences.append(self._difference(event, "kind"))
            self._advance()
        expected = self._next
        if expected is None or not isinstance(expected, _COUNTERPART[type(event)]):
            difference = self._difference(event, "kind")
            if isinstance(event, EpochEnd) and event.run_over and not isinstance(expected, ExpectedUpdate):
                self._held = difference
            else:
                differences.append(difference)
            if not isinstance(event, Refresh):
                self._lost = True
            if isinstance(event, Rollout):
                self._restart(self._observed_position_at_rollout(event))
                self._advance()
            self.matched_since_difference = 0
            return differences
        self.checks += 1
        differences += self._compare(expected, event)
        self.matched_since_difference = 0 if differences else self.matched_since_difference + 1
        self._advance(event.applied if isinstance(event, Update) else None)
        return differences

    def _compare(self, expected: ExpectedEvent, event: OrderedEvent) -> list[Difference]:
        differences = []
        if isinstance(expected, ExpectedRollout) and isinstance(event, Rollout):
            if event.samples != expected.samples:
                differences.append(self._difference(event, "samples"))
            if event.reference != expected.reference:
                differences.append(self._difference(event, "reference"))
        elif isinstance(expected, ExpectedMicroBatch) and isinstance(event, MicroBatch):
            if event.samples != expected.samples:
                differences.append(self._difference(event, "samples"))
            lag = observed_lag(event)
            if lag is not None and lag != expected.lag:
                differences.append(self._difference(event, "lag"))
        elif isinstance(expected, ExpectedUpdate) and isinstance(event, Update):
            if event.microbatches != expected.microbatches:
                differences.append(self._difference(event, "microbatches"))
        elif (
            isinstance(expected, ExpectedRefresh)
            and isinstance(event, Refresh)
            and event.policy_version is not None
            and event.policy_version != expected.version
        ):
            differences.append(self._difference(event, "version"))
        return differences

    def _difference(
        self,
        event: OrderedEvent,
        aspect: Literal["kind", "samples", "lag", "microbatches", "reference", "version"],
    ) -> Difference:
        self.checks += 1
        return Difference(self._next or ExpectedEnd(self._updates), event, aspect, self.where(event))

    def _count(self, event: OrderedEvent) -> None:
        if isinstance(event, Rollout):
            if self._cycle >= self.schedule.rollouts_per_cycle or self._cycle == 0:
                self._cycle = 0
                self._sampled = (event.policy_version,) * self.schedule.rollouts_per_cycle
            self._rollouts += 1
        elif isinstance(event, MicroBatch):
            self._microbatches += 1
            self._window += 1
            self._since_boundary += 1
            self._in_epoch += 1
            self._cycle += 1
        elif isinstance(event, Update):
            self._updates += 1
            self._closed += event.by_loop
            self._version = event.version
            self._window = self._since_boundary = 0
        elif isinstance(event, EpochEnd):
            self._epoch = event.epoch
            self._in_epoch = self._since_boundary = 0

    def _observed_position_at_rollout(self, event: Rollout) -> Position:
        several = self.schedule.rollouts_per_cycle > 1
        return Position(
            updates=self._closed,
            version=event.policy_version,
            cycle=self._window % self.schedule.rollouts_per_cycle if several else 0,
            window=self._window if self.schedule.partial_window == "carry" else self._since_boundary,
            epoch=self._epoch,
            epoch_microbatches=self._in_step(),
        )

    def _in_step(self) -> int:
        """Micro-batches of this pass, in step with its windows: one lost or seen twice must not shift all later updates."""
        size, cycle = self.schedule.microbatches_per_update, self.schedule.microbatches_per_cycle
        if self.schedule.partial_window == "carry":
            return self._in_epoch
        near = range(max(self._in_epoch - size + 1, 0), self._in_epoch + size)
        fitting = [n for n in near if n % size == self._since_boundary % size]
        return min(fitting, key=lambda n: (n % cycle != 0, abs(n - self._in_epoch)))

    def _observed_position(self, *, after_epoch: bool) -> Position:
        return Position(
            updates=self._closed,
            version=self._version,
            cycle=self._cycle % self.schedule.microbatches_per_cycle,
            window=self._window,
            epoch=self._epoch + after_epoch,
            epoch_microbatches=0 if after_epoch else self._in_epoch,
            sampled=self._sampled,
        )


def observed_lag(event: MicroBatch) -> int | None:
    """Updates between the refresh (or, where nothing is refreshed, the rollout) and this forward; None if unseen."""
    origin = event.old_version if event.old_version is not None else event.sampled_version
    return None if origin is None else event.policy_version - origin
