"""Follows a run from outside: reads and judges its records as they grow, at no cost to its processes.

Each look reads only what was added since the last look and keeps none of it, so memory use is constant.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.controlled.live import recorded_phases
from rlstep_hooks.judge.controlled.run import ControlledRun, at_rank
from rlstep_hooks.judge.deviations import DeviationsOf, none_known
from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.replay import judged
from rlstep_hooks.judge.standing import Standing, Tally
from rlstep_hooks.planning.finding import Finding, Verdict
from rlstep_hooks.record.events import Attached, Generated, Phase, Rollout, RunEnded, RunStarted, Unobserved
from rlstep_hooks.record.ledger import CONTROLLER, record_files
from rlstep_hooks.record.tail import Tail

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rlstep_hooks.record.events import AnyEvent
    from rlstep_hooks.record.ledger import Record

INTERVAL = 0.5
"""Seconds between looks."""

PATIENCE = 30.0
"""Seconds that a controller's call waits for its trainers' records: a shared disk may show them later than the call. A trainer without
a record by then is not waited for again."""


class News(msgspec.Struct, frozen=True, kw_only=True):
    """What one look at a run found."""

    now: Standing
    verdict: Verdict
    """The verdict so far, of all processes together."""
    rollout_over: Standing | None = None
    """Where the run stood when its latest finished rollout ended, with the largest |log ratio| of all rollouts that ended since the
    last look; None if none ended."""
    started: RunStarted | None = None
    """The run's first event, once."""
    errors: tuple[Finding, ...] = ()
    """New errors, the first of each kind."""
    warnings: tuple[Finding, ...] = ()
    """New warnings, the first of each kind."""
    unobserved: tuple[Unobserved, ...] = ()


class _Process:
    """One process's record and its judge; a trainer of a controlled run is judged through its controller."""

    def __init__(self, record: Record, judge: Judge | ControlledRun) -> None:
        self.record = record
        self.tail = Tail(record.path)
        self.first: RunStarted | Attached | None = None
        self.judge = judge
        self._held: Phase | None = None
        """The call that waits for its trainers' records."""
        self._held_since = 0.0
        self._patient = True

    def read(self) -> Iterator[AnyEvent]:
        """Events that were added to the record and can be judged."""
        held, self._held = self._held, None
        if held is not None:
            if self._waits(held):
                return
            yield held
        for event in self.tail.read():
            if self._waits(event):
                return
            yield event

    def _waits(self, event: AnyEvent) -> bool:
        """Hold back a call until its trainers' records of it are here."""
        if not self._patient or not isinstance(event, Phase) or not isinstance(self.judge, ControlledRun):
            return False
        if not self.judge.lacking(event):
            self._held_since = 0.0
            return False
        now = time.monotonic()
        self._held_since = self._held_since or now
        self._patient = now - self._held_since < PATIENCE
        self._held = event if self._patient else None
        return self._patient

    @property
    def judged_elsewhere(self) -> bool:
        """Whether a controller's judge reads this record."""
        return isinstance(self.first, Attached)

    @property
    def gone(self) -> bool:
        """Whether the process ended: its record says so, or it ran on this machine and no longer runs."""
        if self.judge.ended is not None:
            return True
        return self.first is not None and self.first.host == os.uname().nodename and not runs_here(self.first.pid)


class FollowedRun:
    """A run of a folder, finished or still growing.

    Args:
        folder: The folder of records.
        run: The run's name. Its records may appear later.
        deviations_of: The known deviations of frameworks.
    """

    def __init__(self, folder: Path, run: str, *, deviations_of: DeviationsOf = none_known) -> None:
        self._deviations_of = deviations_of
        self.folder = folder
        self.run = run
        self._processes: dict[str, _Process] = {}
        self._tally = Tally()
        self._teller: _Process | None = None
        """The process whose events are counted: the controller, or the process whose record was found first."""
        self._told: set[tuple[str, str, str]] = set()
        self._news: _Gathered = _Gathered()

    def look(self) -> News:
        """Read what was added since the last look.

        Raises:
            OSError: A record cannot be read.
        """
        self._news = _Gathered()
        for record in record_files(self.folder).get(self.run, []):
            if record.process not in self._processes:
                self._processes[record.process] = _Process(record, self._judge_of(record))
        for process in self._processes.values():
            if not process.judged_elsewhere:
                self._read(process)
        return News(
            now=self._tally.standing,
            verdict=self._verdict,
            rollout_over=self._news.rollout_over,
            started=self._news.started,
            errors=tuple(finding for finding in self._news.found if finding.severity == "error"),
            warnings=tuple(finding for finding in self._news.found if finding.severity == "warning"),
            unobserved=tuple(self._news.unobserved),
        )

    @property
    def over(self) -> bool:
        """Whether every judged process has ended: its record says so, or it ran on this machine and is gone.

        A process on another machine cannot be checked; it counts as running until its record ends.
        """
        judged = [process for process in self._processes.values() if not process.judged_elsewhere]
        return bool(judged) and all(process.gone for process in judged)

    @property
    def complete(self) -> bool:
        """Whether the process whose events are counted has recorded its end."""
        return self._teller is not None and self._teller.judge.ended is not None

    @property
    def _verdict(self) -> Verdict:
        judged = [process.judge for process in self._processes.values() if not process.judged_elsewhere]
        if any(judge.failed for judge in judged):
            return "FAIL"
        known = bool(judged) and all(judge.verdict == "PASS" for judge in judged)
        return "PASS" if known else "NOT_EVALUATED"

    def _judge_of(self, record: Record) -> Judge | ControlledRun:
        if record.process == CONTROLLER:
            return ControlledRun(lambda rank: recorded_phases(self.folder, self.run, rank), self._deviations_of)
        return Judge(self._deviations_of)

    def _read(self, process: _Process) -> None:
        for event in process.read():
            if process.first is None and isinstance(event, RunStarted | Attached):
                process.first = event
                if process.judged_elsewhere:
                    return
                self._teller = self._teller or process
            self._observe(process, event)

    def _observe(self, process: _Process, event: AnyEvent) -> None:
        telling = process is self._teller
        if telling and _ends_rollout(event) and self._tally.standing.rollouts:
            self._news.rollout_over = self._tally.standing.since(self._news.rollout_over)
        event, findings = judged(process.judge, event)
        if telling:
            for heard in process.judge.take_heard(event):
                self._tally.hear(heard)
                if isinstance(heard, RunStarted):
                    self._news.started = heard
                elif isinstance(heard, Unobserved):
                    self._news.unobserved.append(heard)
        started = process.judge.run
        for finding in findings:
            if finding.severity != "info" and finding.kind not in self._told:
                self._told.add(finding.kind)
                rank, size = (process.record.rank, started.world_size) if started is not None else (None, 1)
                self._news.found.append(finding if rank is None else at_rank(finding, rank, size))


class _Gathered(msgspec.Struct):
    """News gathered during a look."""

    rollout_over: Standing | None = None
    started: RunStarted | None = None
    found: list[Finding] = []
    unobserved: list[Unobserved] = []


def _ends_rollout(event: AnyEvent) -> bool:
    """Whether this event ends the rollout before it."""
    return isinstance(event, RunEnded) or (isinstance(event, Rollout | Generated) and event.purpose == "training")


def runs_here(pid: int) -> bool:
    """Whether a process with this id runs on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # the process is another user's
        return True
    return True
