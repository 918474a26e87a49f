"""The timeline of a run in phases: each rollout is followed by its updates (verl, OpenRLHF, classic PPO)."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.timeline.expected import (
    ExpectedEnd,
    ExpectedEpochEnd,
    ExpectedEvent,
    ExpectedMicroBatch,
    ExpectedRefresh,
    ExpectedRollout,
    ExpectedSync,
    ExpectedUpdate,
    Outcome,
)
from rlstep_hooks.planning.counting import countable
from rlstep_hooks.planning.minibatches import updates_wrapping

if TYPE_CHECKING:
    from collections.abc import Generator

    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.events import EpochEnd, MicroBatch, Rollout, Update
    from rlstep_hooks.record.values import Role


class PhasePosition(msgspec.Struct, frozen=True, kw_only=True):
    """Where in the run a timeline starts: always before a rollout. All zeros is the start of training."""

    rollouts: int = 0
    """Rollouts made."""
    updates: int = 0
    """Policy updates, including skipped ones."""
    version: int = 0
    """Policy version: updates that were applied."""
    window: int = 0
    """Micro-batches of the policy whose gradients are carried into the next rollout."""
    critic_window: int = 0
    """Micro-batches of the critic whose gradients are carried into the next rollout."""
    waiting_samples: int = 0
    """Samples of frozen rollouts that wait in the buffer, summed over all processes."""
    resumed: bool = False
    """Whether training continues from a checkpoint or mid-run, so that no first weight sync is due."""


def phase_events(schedule: Schedule, start: PhasePosition | None = None) -> Generator[ExpectedEvent, Outcome, None]:
    """Every event that one process should show, in order.

    Send after each event:

    - `ExpectedUpdate`: whether it was applied; the policy version stays if not.
    - `ExpectedMicroBatch` of unknown size: its samples; the mini-batch continues until its samples are used up.
    - `ExpectedMicroBatch` that may be the last of its rollout: "ended" if it was.
    - `ExpectedRollout` of unknown size: its samples.

    A run of unknown length yields for ever. A critic trained in any order with the policy is left out: see `critic_events`.

    Args:
        schedule: The plan.
        start: Where to begin; None for the start of training.
    """
    position = start or PhasePosition()
    updates, version, waiting = position.updates, position.version, position.waiting_samples
    policy, critic = _Updates(schedule, "policy", position.window), None
    if schedule.critic is not None and schedule.critic_order != "free":
        critic = _Updates(schedule.critic, "critic", position.critic_window)
    per_epoch = schedule.rollouts_per_epoch if places_epoch_ends(schedule) else None
    reference = schedule.reference_source == "at_rollout"
    # An engine's log-probs are as old as its weights; in asynchronous training no plan knows their age.
    counted = schedule.old_logprob_source != "engine" or schedule.max_age == 0
    rollout = position.rollouts
    # A timeline that starts at a rollout starts after the end of the previous pass.
    if schedule.syncs in ("first_and_after_updates", "first_and_before_updates") and not position.resumed:
        yield ExpectedSync(version)
    while schedule.rollouts is None or rollout < schedule.rollouts:
        if per_epoch and rollout != position.rollouts and rollout % per_epoch == 0:
            yield ExpectedEpochEnd(rollout // per_epoch)
        planned = samples_of_rollout(schedule, rollout)
        # Mini-batches that run on over the ends of passes are counted over what was there to train, not over what was planned.
        data_dependent = schedule.rows_bound == "data_dependent" or schedule.remainder == "wrap"
        outcome = yield ExpectedRollout(None if data_dependent else planned, version, reference)
        # Padding completes the last mini-batch of any rollout, so the number of samples decides the number of mini-batches.
        counts = data_dependent or schedule.remainder in ("pad", "data_dependent")
        samples = _size(outcome, planned) if counts else planned
        if schedule.syncs == "first_and_before_updates":
            yield ExpectedSync(version)
        began, waits = version, rollout < schedule.frozen_rollouts
        for part in range(schedule.parts_per_rollout):
            share = samples // schedule.parts_per_rollout
            if schedule.old_logprob_source in ("at_rollout", "recompute"):
                yield ExpectedRefresh(began)
            if critic is not None and schedule.critic_order == "before":
                minibatches = padded_minibatches(schedule, samples, role="critic", policy_waits=waits)
                yield from critic.of_critic(share, rollout, waits=waits, minibatches=minibatches, part=part)
            if not waits:
                lag = version - began if counted else None
                if schedule.flush is not None:
                    made, applied = yield from policy.windows(lag, flushed=schedule.flush.covers(rollout))
                else:
                    minibatches = padded_minibatches(schedule, samples) or schedule.minibatches
                    made, applied = yield from policy.phase(
                        share + waiting, lag, _of_part(minibatches, part, schedule.parts_per_rollout)
                    )
                updates, version, waiting = updates + made, version + applied, 0
            elif schedule.frozen_samples_kept:
                waiting += share
            if critic is not None and schedule.critic_order == "after":
                yield from critic.of_critic(share, rollout, waits=waits, part=part)
        if schedule.syncs in ("after_updates", "first_and_after_updates"):
            yield ExpectedSync(version)
        rollout += 1
    yield ExpectedEnd(updates)


def critic_events(schedule: Schedule, start: PhasePosition | None = None) -> Generator[ExpectedEvent, Outcome, None]:
    """The updates of a critic that is trained in any order with the policy, on rollouts of any size.

    Args:
        schedule: The policy's plan, which contains the critic's.
        start: Where to begin; None for the start of training.

    Raises:
        LookupError: The plan has no critic.
    """
    if schedule.critic is None:
        raise LookupError("the plan has no critic")
    position = start or PhasePosition()
    critic = _Updates(schedule.critic, "critic", position.critic_window)
    updates, rollout = 0, position.rollouts
    while schedule.rollouts is None or rollout < schedule.rollouts:
        outcome = yield ExpectedRollout(None, position.version, False)
        samples = _size(outcome, samples_of_rollout(schedule, rollout))
        updates += yield from critic.of_critic(samples, rollout, waits=rollout < schedule.frozen_rollouts)
        rollout += 1
    yield ExpectedEnd(updates)


def places_epoch_ends(schedule: Schedule) -> bool:
    """Whether the plan says between which rollouts a pass of the loader ends."""
    known = schedule.rows_bound == "exact" and schedule.rollouts_per_epoch is not None
    return known and schedule.epoch_ends_between_rollouts


def samples_of_rollout(schedule: Schedule, rollout: int) -> int:
    """Samples that one rollout (counted from 0) generates, summed over all processes."""
    last, per_epoch = schedule.samples_of_last_rollout, schedule.rollouts_per_epoch
    if last and per_epoch and rollout % per_epoch == per_epoch - 1:
        return last
    return schedule.samples_per_rollout


class _Updates:
    """The updates of one role, rollout after rollout."""

    def __init__(self, schedule: Schedule, role: Role, window: int) -> None:
        self.schedule = schedule
        self._role = role
        self._window = window
        self._made = 0
        """Updates made on this rollout."""
        self._ended = False
        """Whether the updates on this rollout ended early."""

    def of_critic(
        self, samples: int, rollout: int, *, waits: bool, minibatches: tuple[int, ...] = (), part: int | None = None
    ) -> Generator[ExpectedEvent, Outcome, int]:
        """A critic's updates on one rollout.

        Args:
            samples: Samples of the rollout.
            rollout: The number of the rollout, from 0.
            waits: Whether the policy is frozen on this rollout.
            minibatches: Samples of each update of one pass, if the rollout does not have its planned size.
            part: The part of the rollout, from 0; None for all of them.

        Returns:
            Number of updates made.
        """
        if rollout < self.schedule.frozen_rollouts:
            return 0
        planned = (self.schedule.warmup_minibatches if waits else ()) or self.schedule.minibatches
        minibatches = minibatches or planned
        if part is not None:
            minibatches = _of_part(minibatches, part, self.schedule.parts_per_rollout)
        made, _ = yield from self.phase(samples, None, minibatches)
        return made

    def phase(
        self, samples: int, lag: int | None, minibatches: tuple[int, ...]
    ) -> Generator[ExpectedEvent, Outcome, tuple[int, int]]:
        """The updates on one rollout.

        Args:
            samples: Samples to train on in each pass, over all processes.
            lag: Lag of the first update; None if there is no ratio or its lag is not planned.
            minibatches: Samples of each update of one pass.

        Returns:
            Number of updates made, and how many of them were applied.
        """
        self._made, self._ended = 0, False
        applied, size = 0, self.schedule.samples_per_update
        if self.schedule.remainder == "wrap" and size:
            count = updates_wrapping(samples, size, self.schedule.reuse_epochs)
            applied = yield from self._pass(lag, (size,) * countable(count, "updates on one rollout"))
            return self._made, applied
        for _ in range(self.schedule.reuse_epochs):
            now = None if lag is None else lag + applied
            if self.schedule.remainder == "carry":
                applied += yield from self._carried_pass(samples, now)
            elif self.schedule.remainder == "drop":
                applied += yield from self._pass(now, _filled(minibatches, samples))
            elif self.schedule.remainder == "data_dependent":
                # As many updates as planned, but none without a sample.
                applied += yield from self._pass(now, minibatches[:samples])
            else:
                applied += yield from self._pass(now, minibatches)
            if self._ended:
                break
        return self._made, applied

    def _may_end(self) -> bool:
        """Whether the updates on this rollout may end here. The first is always made: before it nothing has moved."""
        return self.schedule.updates_bound == "upper" and self._made > 0

    def _update(self, microbatches: int | None) -> Generator[ExpectedEvent, Outcome, bool]:
        """One update; returns whether it was applied."""
        applied = (yield ExpectedUpdate(microbatches, self._role)) is not False
        self._made += 1
        return applied

    def _pass(self, lag: int | None, minibatches: tuple[int, ...]) -> Generator[ExpectedEvent, Outcome, int]:
        applied = 0
        for size in minibatches:
            now = None if lag is None else lag + applied
            microbatches = yield from self._minibatch(size // self.schedule.world_size, now)
            if self._ended:
                break
            applied += yield from self._update(microbatches)
        return applied

    def _minibatch(self, samples: int, lag: int | None) -> Generator[ExpectedEvent, Outcome, int | None]:
        """The micro-batches of one mini-batch; returns their number, or None if token counts decide it."""
        may_end = self._may_end()
        each = self.schedule.samples_per_microbatch
        own = None if each is None else each // self.schedule.world_size
        if self.schedule.remainder == "data_dependent":
            return (yield from self._of_any_size(lag))
        count = 0
        while samples > 0:
            size, at_most = (None, samples) if own is None else (min(own, samples), None)
            taken = yield ExpectedMicroBatch(size, lag, self._role, at_most=at_most, may_end=may_end and count == 0)
            if taken == "ended":
                self._ended = True
                break
            samples -= own or taken or samples
            count += 1
        return None if own is None else count

    def _of_any_size(self, lag: int | None) -> Generator[ExpectedEvent, Outcome, int]:
        """The micro-batches of one mini-batch whose sizes the data decide; their number is planned."""
        count = self.schedule.microbatches_per_update or 1
        for _ in range(count):
            yield ExpectedMicroBatch(None, lag, self._role)
        return count

    def windows(self, lag: int | None, *, flushed: bool) -> Generator[ExpectedEvent, Outcome, tuple[int, int]]:
        """The updates on one rollout when windows continue over passes and rollouts, as accelerate counts them.

        Args:
            lag: Lag of the first update; None if there is no ratio.
            flushed: Whether every micro-batch is an update.

        Returns:
            Number of updates made, and how many of them were applied.
        """
        size, count = self.schedule.samples_per_microbatch, self.schedule.microbatches_per_rollout or 0
        each = None if size is None else size // self.schedule.world_size
        self._made = applied = 0
        for index in range(count):
            # These loops check the KL between two passes.
            may_end = self._may_end() and index % (count // self.schedule.reuse_epochs) == 0
            now = None if lag is None else lag + applied
            if (yield ExpectedMicroBatch(each, now, self._role, may_end=may_end)) == "ended":
                break
            self._window += 1
            if flushed or self._window == self.schedule.window:
                applied += yield from self._update(self._window)
                self._window = 0
        return self._made, applied

    def _carried_pass(self, samples: int, lag: int | None) -> Generator[ExpectedEvent, Outcome, int]:
        """A pass whose accumulation continues from the previous pass; samples that fill no micro-batch are dropped."""
        each = (self.schedule.samples_per_microbatch or samples) // self.schedule.world_size
        applied = 0
        for _ in range(samples // self.schedule.world_size // each):
            may_end = self._may_end() and self._window == 0
            now = None if lag is None else lag + applied
            if (yield ExpectedMicroBatch(each, now, self._role, may_end=may_end)) == "ended":
                self._ended = True
                break
            self._window += 1
            if self._window == self.schedule.window:
                self._window = 0
                applied += yield from self._update(self.schedule.window)
        return applied


def padded_minibatches(
    schedule: Schedule, samples: int, *, role: Role = "policy", policy_waits: bool = False
) -> tuple[int, ...]:
    """The mini-batches of one pass over a padded rollout that does not have its planned size.

    Padding is added until the processes and the mini-batch of every role that trains on the rollout divide the samples.

    Args:
        schedule: The plan of the policy.
        samples: Number of generated samples.
        role: The role whose mini-batches are wanted.
        policy_waits: Whether the policy is frozen on this rollout.

    Returns:
        Sizes of the mini-batches; empty if the rollout has its planned size or nothing is padded.
    """
    if schedule.remainder != "pad" or samples == schedule.samples_per_rollout:
        return ()
    sizes = {"policy": None if policy_waits else schedule.samples_per_update}
    if schedule.critic is not None:
        sizes["critic"] = schedule.critic.samples_per_update
    multiple = math.lcm(schedule.world_size, *(size for size in sizes.values() if size))
    size = sizes[role] or multiple
    return (size,) * countable(-(-samples // multiple) * multiple // size, "updates on one rollout")


def _size(outcome: Outcome, planned: int) -> int:
    """The observed samples of a rollout, or the planned ones if none were observed."""
    return outcome if isinstance(outcome, int) and outcome else planned


def _of_part(minibatches: tuple[int, ...], part: int, parts: int) -> tuple[int, ...]:
    """The mini-batches of one pass over one part (counted from 0) of a rollout."""
    each = len(minibatches) // parts
    return minibatches if parts == 1 else minibatches[part * each : (part + 1) * each]


def _filled(minibatches: tuple[int, ...], samples: int) -> tuple[int, ...]:
    """The mini-batches that these samples fill; a smaller rollout fills fewer."""
    return tuple(size for size, needed in zip(minibatches, accumulate(minibatches), strict=True) if needed <= samples)


class PhaseCursor:
    """A process's position in its run, followed from its events."""

    def __init__(self, schedule: Schedule, start: PhasePosition) -> None:
        self.start = start
        self.rollouts = start.rollouts
        self.microbatches = 0
        self.updates = start.updates
        self.epoch = start.rollouts // schedule.rollouts_per_epoch if schedule.rollouts_per_epoch else 0
        self._schedule = schedule
        self._version = start.version
        self._windows = {"policy": start.window, "critic": start.critic_window}
        self._waiting = self._waiting_before = start.waiting_samples

    # Move past one event.

    def rollout(self, event: Rollout) -> None:
        """Move past a rollout; its samples wait while the policy is frozen."""
        self.rollouts += 1
        self._waiting_before = self._waiting
        if self._schedule.frozen_samples_kept and self.rollouts <= self._schedule.frozen_rollouts:
            self._waiting += event.samples

    def microbatch(self, event: MicroBatch) -> None:
        """Move past a micro-batch of the policy or the critic."""
        self.microbatches += 1
        self._windows[event.role] += 1
        if event.role == "policy":
            self._waiting = 0

    def update(self, event: Update) -> None:
        """Move past an update, made or skipped."""
        self._windows[event.role] = 0
        if event.role == "policy":
            self.updates += 1
            self._version = event.version

    def epoch_end(self, event: EpochEnd) -> None:
        """Move past the end of a pass of the loader."""
        self.epoch = event.epoch

    def at_rollout(self, event: Rollout, *, passed: bool = False) -> PhasePosition:
        """The position just before a rollout, from which a timeline can continue.

        Args:
            event: The rollout.
            passed: Whether the cursor has moved past it already.
        """
        return PhasePosition(
            rollouts=self.rollouts - passed,
            updates=self.updates,
            version=event.policy_version,
            window=_carried(self._windows["policy"], self._schedule),
            critic_window=_carried(self._windows["critic"], self._schedule.critic),
            waiting_samples=self._waiting_before if passed else self._waiting,
            resumed=True,
        )

    def after_unplanned_epoch_end(self, event: EpochEnd) -> PhasePosition | None:
        """Answer None: a pass of the loader ends between rollouts, so the timeline continues."""
        return None


def _carried(microbatches: int, schedule: Schedule | None) -> int:
    """Micro-batches since the last update whose gradients are carried into the next rollout."""
    if schedule is None or (schedule.remainder != "carry" and schedule.flush is None):
        return 0
    return microbatches % schedule.window
