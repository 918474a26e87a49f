"""The recorder: one process's path from observer to ledger and judge."""

from __future__ import annotations

import time
import zlib
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from rlstep_hooks.judge.conformance import observed_lag
from rlstep_hooks.judge.ranks.outcomes import not_compared
from rlstep_hooks.record.describe import describe
from rlstep_hooks.record.events import (
    AnyEvent,
    Judged,
    MicroBatch,
    Refresh,
    Rollout,
    RunEnded,
    RunStarted,
    Unobserved,
    Update,
)
from rlstep_hooks.record.tail import unknown_from_here

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.judge.controlled.run import ControlledRun
    from rlstep_hooks.judge.judge import Judge
    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.ledger import Ledger


BATCH = 256
"""Largest number of events that wait to be judged."""
QUICK = 0.5
"""Seconds in which events that follow each other quickly may wait to be written together."""
JUDGED_FINDINGS = 50
"""Largest number of findings that a process passes to the reporting process."""


class Listener(Protocol):
    """Something that follows a run as it happens, such as a live line in a terminal."""

    def heard(self, event: AnyEvent, judge: Judge | ControlledRun) -> None:
        """An event was recorded and judged."""


class Recorder:
    """Writes events to the ledger as they happen, has them judged in small batches, and never lets its own errors out.

    A batch is judged when somebody asks for the judgement, as callbacks do after each update. Judging a few events in a row costs much
    less than judging each by itself between two forwards of a model.
    """

    def __init__(self, ledger: Ledger, judge: Judge | ControlledRun, listeners: tuple[Listener, ...] = ()) -> None:
        self._judge = judge
        self._waiting: list[AnyEvent] = []
        """Events that are not judged yet."""
        self._unwritten: list[AnyEvent] = []
        self._written = -QUICK
        """When events were written last."""
        self._joined: list[AnyEvent] = []
        """Events that are written with the next one."""
        self.ledger = ledger
        self._digest = 0
        self._unsealed: list[AnyEvent] = []
        """Events that are not in the checksum yet."""
        self._sealed_types = _CARRY_DIGEST
        self._new_findings: list[Finding] = []
        self._listeners = list(listeners)
        self._began = time.perf_counter()
        self._told: set[str] = set()
        self._lost = ""
        """Why nothing is written any more; empty while it is."""

    @property
    def judge(self) -> Judge | ControlledRun:
        """The judge, with everything recorded so far judged."""
        self.settle()
        return self._judge

    @property
    def digest(self) -> int:
        """Checksum of the structure of everything recorded so far; the same on all data-parallel ranks of a healthy run."""
        self._add_to_digest()
        return self._digest

    def now(self) -> float:
        """Seconds since recording began, to the microsecond."""
        return int((time.perf_counter() - self._began) * 1e6) / 1e6  # `round` takes several times as long

    def emit(self, *events: AnyEvent) -> None:
        """Record events of one moment, in one write; they are judged with the next batch."""
        self._take(events)
        self.write()

    def emit_soon(self, *events: AnyEvent) -> None:
        """As `emit`; but where events follow each other quickly, those of up to `QUICK` seconds are one write.

        Who calls it calls `write` before the next act of the framework that may take long. If the process is killed before that, these
        events are lost.
        """
        self._take(events)
        if time.perf_counter() - self._written >= QUICK:
            self.write()

    def emit_with_next(self, event: AnyEvent) -> None:
        """Record an event in one write with the next event, which follows at once and ends the same act of the framework.

        If the process is killed between the two, this event is lost.
        """
        self._joined.append(event)

    def write(self) -> None:
        """Write what waits to be written."""
        events, self._unwritten = self._unwritten, []
        if not events or self._lost:
            return
        self._written = time.perf_counter()
        try:
            self.ledger.write(*events)
        except Exception as error:  # noqa: BLE001 - a ledger of any kind must not end training
            self._lost = f"recording stopped: {describe(error)}"
            self.cannot("recording", self._lost)

    def _take(self, events: tuple[AnyEvent, ...]) -> None:
        if self._joined:
            events, self._joined = (*self._joined, *events), []
        for event in events:
            self._unsealed.append(event)
            recorded = self._sealed(event) if type(event) in self._sealed_types else event
            self._unwritten.append(recorded)
            self._waiting.append(recorded)
            if type(event) is RunStarted and event.world_size > 1:
                self._sealed_types = _CARRY_DIGEST_AMONG_OTHERS
        if len(self._waiting) >= BATCH:
            self.settle()

    def _sealed(self, event: AnyEvent) -> AnyEvent:
        """The event with the checksum of the run so far, itself included."""
        return msgspec.structs.replace(event, digest=self.digest)

    def _add_to_digest(self) -> None:
        known = ((_STRUCTURE.get(type(event)), event) for event in self._unsealed)
        parts = [structure(event) for structure, event in known if structure is not None]
        self._digest = zlib.crc32(b"".join(parts), self._digest)
        self._unsealed.clear()

    def settle(self) -> None:
        """Write and judge what waits, and tell the listeners."""
        if self._joined:
            self._take(())
        self.write()
        self._add_to_digest()
        while self._waiting:
            events, self._waiting = self._waiting, []
            for event in events:
                try:
                    self._new_findings += self._judge.observe(event)
                except Exception as error:  # noqa: BLE001 - a fault of a rule must not end training
                    self.cannot("order", f"the judge failed on {type(event).__name__}: {describe(error)}")
                if self._listeners:
                    self._tell(self._judge.take_heard(event))

    def _tell(self, events: list[AnyEvent]) -> None:
        for event in events:
            for listener in list(self._listeners):
                try:
                    listener.heard(event, self._judge)
                except Exception as error:  # noqa: BLE001 - a view must not end training
                    self._listeners.remove(listener)
                    self.cannot("recording", f"{type(listener).__name__} stopped: {describe(error)}")

    def cannot(self, what: str, why: str) -> None:
        """Record once that a topic cannot be observed."""
        if what in self._told:
            return
        self._told.add(what)
        self.emit(Unobserved(at=self.now(), what=what, why=why))

    def finish(self, ended: RunEnded) -> Report:
        """The run is over: write its last events with the judgement, and close the record.

        Args:
            ended: The run's end; time and counts are filled in here.
        """
        counts = msgspec.structs.asdict(self.judge.counts)
        self._say_what_is_lost()
        written = self.ledger.checksum  # everything before is written by now, because the judge was asked for
        self.emit(msgspec.structs.replace(ended, at=self.now(), counts=counts, written=written))
        report = self.judge.report()
        findings = tuple(report.findings[:JUDGED_FINDINGS])
        self.emit(
            Judged(at=self.now(), verdict=report.verdict, findings=findings, not_compared=not_compared(report.rules))
        )
        self.ledger.close()
        return report

    def _say_what_is_lost(self) -> None:
        """Try once more to write at the end, where recording had stopped: a full disk may have room by now for the reason and the
        end."""
        if not self._lost:
            return
        try:
            self.ledger.write(
                Unobserved(at=self.now(), what="recording", why=self._lost), *unknown_from_here(self._lost)
            )
        except Exception:  # noqa: BLE001 - the record stays as it is, and its reader sees that it has no end
            return
        self._lost = ""

    def take_findings(self) -> list[Finding]:
        """Findings since the last call."""
        self.settle()
        findings, self._new_findings = self._new_findings, []
        return findings


def _of_microbatch(event: MicroBatch) -> bytes:
    return b"m%d,%d,%d" % (event.samples, event.policy_version, observed_lag(event) or 0)


def _of_rollout(event: Rollout) -> bytes:
    return b"" if event.purpose == "evaluation" else b"g%d,%d" % (event.samples, event.policy_version)


def _of_refresh(event: Refresh) -> bytes:
    return b"o%d,%d" % (event.samples, -1 if event.policy_version is None else event.policy_version)


def _of_update(event: Update) -> bytes:
    return b"u%d,%d,%d" % (event.version, event.microbatches, event.applied)


_STRUCTURE: dict[type, Callable[[Any], bytes]] = {
    MicroBatch: _of_microbatch,
    Rollout: _of_rollout,
    Refresh: _of_refresh,
    Update: _of_update,
}
"""The part of an event that is the same on all data-parallel ranks of a healthy run."""
_CARRY_DIGEST: frozenset[type] = frozenset({RunEnded})
_CARRY_DIGEST_AMONG_OTHERS: frozenset[type] = frozenset({Rollout, RunEnded})
"""Events that carry the checksum where there are several ranks: every rollout does, so that ranks can be compared there."""
