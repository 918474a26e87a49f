"""Trainers of a scripted run as actors of Ray on nodes of their own, and a controller that calls and judges them."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayActorError

from rlstep_hooks.judge.controlled.live import recorded_phases
from rlstep_hooks.record.events import Phase, RunEnded, RunStarted
from rlstep_hooks.record.ledger import CONTROLLER, FolderLedger
from rlstep_hooks.record.wire import decode, encode
from rlstep_hooks.record.writer import EventWriter
from rlstep_hooks.session.ray_sink import RayLedger, Sink
from rlstep_hooks.session.recorder import Recorder
from tests.reports import ControlledRun

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.record.events import AnyEvent
    from tests.scripted_phases import Script


class Trainer:
    """One trainer's process: writes what it is told to have done, as an adapter does."""

    def __init__(self, run: str, process: str) -> None:
        self._writer = EventWriter(RayLedger(run, process))

    def play(self, lines: Sequence[bytes]) -> int:
        """Do one call's part; the number of events."""
        for line in lines:
            self._writer.emit(decode(line))
        return len(lines)

    def pid(self) -> int:
        """Its process."""
        return os.getpid()


class Controller:
    """The controller of a scripted run, in this process.

    Args:
        folder: Where the run is recorded, on this machine alone.
        run: Its name.
        script: What its processes do.
        trainers: The trainers' actors by process.
    """

    def __init__(self, folder: Path, run: str, script: Script, trainers: dict[str, Any]) -> None:
        self.sink = Sink(folder, run)
        judged = ControlledRun(lambda rank: recorded_phases(folder, run, rank))
        self.recorder = Recorder(FolderLedger(folder, run, CONTROLLER), judged)
        self.trainers = trainers
        self.dead: set[str] = set()
        self._script = iter(script)
        self._run = run

    def next_call(self) -> tuple[dict[str, list[AnyEvent]], AnyEvent]:
        """What the trainers do up to the controller's next event, and that event."""
        parts: dict[str, list[AnyEvent]] = defaultdict(list)
        for process, event in self._script:
            if process == CONTROLLER:
                return parts, event
            parts[process].append(event)
        raise AssertionError("the script is over")

    def step(self) -> AnyEvent:
        """One call of all trainers that live, and the controller's event after it."""
        parts, event = self.next_call()
        self.call(parts)
        self.emit(event)
        return event

    def call(self, parts: dict[str, list[AnyEvent]]) -> None:
        """Have trainers do their parts; a trainer that is dead is noted and left out from now on."""
        answers = {
            process: self.trainers[process].play.remote([encode(event) for event in events])
            for process, events in parts.items()
            if process not in self.dead
        }
        for process, answer in answers.items():
            try:
                assert ray.get(answer, timeout=30) == len(parts[process])
            except RayActorError:
                self.dead.add(process)

    def emit(self, event: AnyEvent) -> None:
        """Record an event as an adapter's controller does."""
        if isinstance(event, Phase):
            self.sink.wait_for_call(event, self.recorder)
        if isinstance(event, RunStarted):
            event = RunStarted(**{name: getattr(event, name) for name in event.__struct_fields__} | {"run": self._run})
        self.recorder.emit(event)

    def until(self, kind: type, name: str = "", times: int = 1) -> None:
        """Go on until so many events of a kind were recorded."""
        while times:
            event = self.step()
            times -= isinstance(event, kind) and (not name or getattr(event, "name", "") == name)

    def finish(self) -> Report:
        """Go on to the run's end and judge it."""
        self.until(RunEnded)
        return self.report()

    def report(self) -> Report:
        """The judgement so far."""
        self.recorder.ledger.close()
        return self.recorder.judge.report()
