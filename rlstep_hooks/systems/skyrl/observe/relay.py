"""Events of the policy worker's process, kept until the trainer's process fetches them for its record."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rlstep_hooks.record.events import Unobserved

if TYPE_CHECKING:
    from rlstep_hooks.record.events import AnyEvent


class Relay:
    """Takes events as a recorder does, and neither writes nor judges them.

    Args:
        now: The time on the clock of the record.
    """

    def __init__(self, now: float) -> None:
        self._began = time.perf_counter() - now
        self._events: list[AnyEvent] = []
        self._told: set[str] = set()

    def now(self) -> float:
        """Seconds since recording began, up to the time that the beginning of this relay took to arrive."""
        return time.perf_counter() - self._began

    def emit(self, *events: AnyEvent) -> None:
        """Keep events."""
        self._events += events

    def cannot(self, what: str, why: str) -> None:
        """Say once that a topic cannot be observed."""
        if what not in self._told:
            self._told.add(what)
            self.emit(Unobserved(at=self.now(), what=what, why=why))

    def take(self) -> list[AnyEvent]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events
