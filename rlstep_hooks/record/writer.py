"""Writes a process's events to its ledger as they happen; another process judges them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rlstep_hooks.record.events import AnyEvent, Unobserved

if TYPE_CHECKING:
    from rlstep_hooks.record.ledger import Ledger


class EventWriter:
    """Writes events to a ledger and contains its own errors."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._began = time.perf_counter()
        self._told: set[str] = set()
        self._writing = True

    def now(self) -> float:
        """Seconds since recording began, to the microsecond."""
        return int((time.perf_counter() - self._began) * 1e6) / 1e6  # `round` takes several times as long

    def emit(self, *events: AnyEvent) -> None:
        """Write the events of one moment in one write. After a failure nothing more is written, so the record ends there."""
        if not self._writing:
            return
        try:
            self._ledger.write(*events)
        except Exception:  # noqa: BLE001 - a ledger of any kind must not end training
            self._writing = False

    def cannot(self, what: str, why: str) -> None:
        """Record once that a topic cannot be observed."""
        if what not in self._told:
            self._told.add(what)
            self.emit(Unobserved(at=self.now(), what=what, why=why))
