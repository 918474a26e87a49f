"""A controller's record of its run: how it begins, its calls to the trainers in the order in which they return, and its end."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from rlstep_hooks.judge.controlled.live import recorded_phases
from rlstep_hooks.judge.controlled.run import ControlledRun
from rlstep_hooks.judge.report import ends_training
from rlstep_hooks.record.events import Phase, PhaseName, Purpose, RunEnded, RunStarted
from rlstep_hooks.record.ledger import CONTROLLER, open_ledger
from rlstep_hooks.session import ray_sink
from rlstep_hooks.session.recorder import Recorder
from rlstep_hooks.show.console import ConsoleListener

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.planning.schedule import Schedule


class ControllerRecord:
    """Records a controller, and judges its trainers with what they record themselves.

    Args:
        folder: Where all processes of the run record.
        run: Its name.
    """

    def __init__(self, folder: Path, run: str) -> None:
        opened = open_ledger(folder, run, CONTROLLER)
        self.trouble = opened.trouble
        """Why nothing is recorded; empty where it is."""
        self.sink = ray_sink.Sink(folder, run) if ray_sink.asked() else None
        """Where trainers without a disk in common send their records; None where they write files."""
        self.recorder = Recorder(
            opened.ledger, (ConsoleListener(),), judge=ControlledRun(lambda rank: recorded_phases(folder, run, rank))
        )
        self.called: list[PhaseName] = []
        """Calls to all trainers that were made and may not have returned."""
        self._run = run
        self._calls: dict[PhaseName, int] = {}

    def begin(
        self, schedule: Schedule | None, *, updates: int, facts: dict[str, Any], versions: Mapping[str, str]
    ) -> None:
        """Training begins.

        Args:
            schedule: The plan, where there is one.
            updates: Policy updates made before (a resumed run).
            facts: What else is known of the run.
            versions: Releases of the packages involved.
        """
        self.recorder.emit(
            RunStarted(
                run=self._run,
                rank=0,
                world_size=schedule.world_size if schedule is not None else 1,
                local_world_size=1,
                host=os.uname().nodename,
                pid=os.getpid(),
                started=time.time(),
                schedule=schedule,
                start_updates=updates,
                facts=facts,
                versions=dict(versions),
            )
        )

    def cannot_follow(self, reason: str) -> bool:
        """Record why the run cannot be followed, if it cannot.

        Args:
            reason: Of the framework's own; empty where there is none.

        Returns:
            Whether it cannot.
        """
        if self.trouble:
            # Trainers tell what they saw through files of the same folder.
            self.recorder.cannot("recording", self.trouble)
        reason = reason or self.trouble
        if reason:
            self.recorder.cannot("order", reason)
        return bool(reason)

    def all_returned(self, purpose: Purpose) -> None:
        """All trainers have done what they were called for."""
        called, self.called = self.called, []
        for name in called:
            number = self._calls.get(name, 0)
            self._calls[name] = number + 1
            call = Phase(at=self.recorder.now(), name=name, number=number, purpose=purpose)
            if self.sink is not None:
                self.sink.wait_for_call(call, self.recorder)
            self.recorder.emit(call)

    def take_error(self) -> Finding | None:
        """The first error that ends training, of those found since the last call."""
        return ends_training(self.recorder.take_findings())

    def end(self, *, updates_before: int, error: str, stopped: bool) -> Report:
        """Training is over: write the last lines, and print the report.

        Args:
            updates_before: Policy updates made before this run.
            error: What it raised; empty where it returned.
            stopped: Whether something asked it to end early.
        """
        ended = RunEnded(
            status="raised" if error else "completed",
            updates=updates_before + self.recorder.judge.counts.updates,
            error=error,
            stopped=stopped,
        )
        report = self.recorder.finish(ended)
        ConsoleListener().finished(report)
        return report
