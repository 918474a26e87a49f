"""Outcomes of fault tests and of clean runs, noted for the table while the tests run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from rlstep_hooks.record.events import AnyEvent, MicroBatch, Rollout, Update

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlstep_hooks.planning.finding import Finding, Where

VARIABLE = "RLSTEP_DETECTIONS"
"""Names the file that outcomes are added to; without it nothing is noted."""


class Delay(msgspec.Struct, frozen=True):
    """How long after the first wrong event a fault was named."""

    events: int
    """Recorded events between them; where several become complete at once, those are counted too."""
    rollouts: int


class Detected(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A run with a fault."""

    framework: str
    fault: str
    report: str
    code: str
    found: bool
    """Whether the report names it, by its rule and at its place."""
    delay: Delay | None
    """None where no event brings it up, only the report at the end."""
    early: int
    """Alarms before the fault began."""


class Clean(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A run without a fault."""

    framework: str
    alarms: tuple[str, ...]
    """Codes of errors and warnings."""


def note(outcome: Detected | Clean) -> None:
    """Add an outcome to the file, if one is asked for."""
    path = os.environ.get(VARIABLE)
    if path:
        with Path(path).open("ab") as file:
            file.write(msgspec.json.encode(outcome) + b"\n")


def read(path: Path) -> list[Detected | Clean]:
    """All outcomes of a file."""
    return [msgspec.json.decode(line, type=Detected | Clean) for line in path.read_bytes().splitlines()]


class Observer(Protocol):
    """A judge of one process, or of a run with a controller."""

    def observe(self, event: AnyEvent) -> list[Finding]: ...

    def take_heard(self, event: AnyEvent) -> list[AnyEvent]: ...


def delay_of(events: Iterable[AnyEvent], judge: Observer, code: str, place: Where) -> Delay | None:
    """Judge a record again, and see when a finding comes.

    Args:
        events: The record.
        judge: A new judge.
        code: The finding's rule.
        place: The fault's place; numbers left out are not looked at.

    Returns:
        None if the rule never names that place.
    """
    rollout = update = microbatch = -1
    begun: tuple[int, int] | None = None
    heard = 0
    for event in events:
        findings = judge.observe(event)
        for one in judge.take_heard(event):
            heard += 1
            rollout += isinstance(one, Rollout) and one.purpose == "training"
            if isinstance(one, Update) and one.role == "policy":
                update = one.index
            elif isinstance(one, MicroBatch) and one.role == "policy":
                microbatch = one.index
            if begun is None and _reached(place, rollout, update, microbatch):
                begun = heard, rollout
        if any(finding.code == code and _agrees(finding.where, place) for finding in findings):
            first, of_rollout = begun or (heard, rollout)
            return Delay(heard - first, rollout - of_rollout)
    return None


def _reached(place: Where, rollout: int, update: int, microbatch: int) -> bool:
    if place.microbatch is not None:
        return microbatch >= place.microbatch
    if place.update is not None:
        return update >= place.update
    return place.rollout is None or rollout >= place.rollout


def _agrees(found: Where, place: Where) -> bool:
    pairs = ((getattr(found, name), getattr(place, name)) for name in ("rollout", "update", "microbatch"))
    return all(have == want for have, want in pairs if want is not None)
