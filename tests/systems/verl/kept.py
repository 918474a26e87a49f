"""Keeps what an observer records, for tests that make no launch."""

from __future__ import annotations

from typing import Any

from rlstep_hooks.record.events import ConfigChanged, FactsRead


class Kept:
    """Keeps what an observer records; an observation that is given up fails the test."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def now(self) -> float:
        return 0.0

    def emit(self, *events: Any) -> None:
        self.events.extend(events)

    def cannot(self, what: str, why: str) -> None:
        raise AssertionError(f"{what}: {why}")

    @property
    def changed(self) -> list[tuple[Any, Any]]:
        """The settings that were told to be others, before and after."""
        return [(event.before, event.after) for event in self.events if isinstance(event, ConfigChanged)]

    @property
    def unknown(self) -> list[str]:
        """Why the order of rows is not compared."""
        return [event.facts["row_order_unknown"] for event in self.events if isinstance(event, FactsRead)]
