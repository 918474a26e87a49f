"""Where a run stands: the numbers of the live line, counted from events as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.conformance import observed_lag
from rlstep_hooks.judge.timeline import position_of, rollouts_before, start_of
from rlstep_hooks.planning.schedule import Schedule
from rlstep_hooks.record.events import Measured, MicroBatch, Rollout, RunStarted, Update

if TYPE_CHECKING:
    from rlstep_hooks.record.events import AnyEvent


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run stands. Counts include rollouts and updates from before a resume."""

    rollouts: int = 0
    """Rollouts begun."""
    updates: int = 0
    """Updates of the policy, including skipped ones, as the plan counts them."""
    schedule: Schedule | None = None
    lag: int | None = None
    """Lag of the latest micro-batch; None if not observed."""
    max_abs_log_ratio: float | None = None
    """Largest |log ratio| of the latest rollout that has numbers; None if none has."""

    starting: bool = False
    """Whether nothing has happened yet but that the run began."""

    def since(self, earlier: Standing | None) -> Standing:
        """This standing, with the larger |log ratio| of this one and an earlier one."""
        if earlier is None or earlier.max_abs_log_ratio is None:
            return self
        largest = max(earlier.max_abs_log_ratio, self.max_abs_log_ratio or 0.0)
        return msgspec.structs.replace(self, max_abs_log_ratio=largest)


class Tally:
    """Counts the events of one process, or of the first trainer of a controlled run."""

    def __init__(self) -> None:
        self._rollouts = 0
        self._updates = 0
        self._starting = True
        self._schedule: Schedule | None = None
        self._lag: int | None = None
        self._largest: float | None = None
        self._largest_now: float | None = None
        """Largest |log ratio| since the last rollout began."""

    def hear(self, event: AnyEvent) -> None:
        """Count one event."""
        if isinstance(event, RunStarted):
            self._schedule = event.schedule
            self._updates = event.start_updates
            self._rollouts = _rollouts_before(event)
            self._starting = True
        elif isinstance(event, Rollout) and event.purpose == "training":
            self._rollouts += 1
            self._starting = False
            self._largest, self._largest_now = self._latest, None
        elif isinstance(event, MicroBatch) and event.role == "policy":
            self._lag = observed_lag(event)
        elif isinstance(event, Update) and event.role == "policy":
            self._updates += 1
        elif isinstance(event, Measured):
            values = [m.max_abs_log_ratio for m in event.microbatches if m.max_abs_log_ratio is not None]
            if values:
                self._largest_now = max(self._largest_now or 0.0, *values)

    @property
    def standing(self) -> Standing:
        """The current counts and numbers."""
        return Standing(
            rollouts=self._rollouts,
            updates=self._updates,
            schedule=self._schedule,
            lag=self._lag,
            max_abs_log_ratio=self._latest,
            starting=self._starting,
        )

    @property
    def _latest(self) -> float | None:
        return self._largest if self._largest_now is None else self._largest_now


def _rollouts_before(started: RunStarted) -> int:
    """Rollouts of the plan that were finished when the run began."""
    schedule = started.schedule
    if schedule is None:
        return 0
    return rollouts_before(schedule, position_of(schedule, start_of(started)))
