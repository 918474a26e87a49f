"""A controller's record of its run: how it begins, its calls to the trainers in the order in which they return, and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.judge.controlled.live import recorded_phases
from rlstep_hooks.judge.controlled.run import ControlledRun
from rlstep_hooks.record.events import Phase, PhaseName, Purpose
from rlstep_hooks.session import ray_sink
from rlstep_hooks.session.session import Options, Run, Session

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.judge.deviations import DeviationsOf
    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.session.recorder import Recorder


class ControllerRecord:
    """Records a controller, and judges its trainers with what they record themselves.

    Args:
        folder: Where all processes of the run record.
        run: The name of the run.
        deviations_of: The known deviations of the framework.

    Raises:
        ValueError: RLSTEP_ON_FAIL is none of the three.
    """

    def __init__(self, folder: Path, run: str, deviations_of: DeviationsOf) -> None:
        self.session = Session(Options.asked(log_dir=folder), deviations_of)
        self.sink = ray_sink.Sink(folder, run) if ray_sink.asked() else None
        """Where trainers without a common disk send their records; None if they write files."""
        self.called: list[PhaseName] = []
        """Calls to all trainers that may not have returned yet."""
        self._controlled = ControlledRun(lambda rank: recorded_phases(folder, run, rank), deviations_of)
        self._run = run
        self._calls: dict[PhaseName, int] = {}

    @property
    def recorder(self) -> Recorder:
        """Where events go, once training has begun."""
        assert self.session.recorder is not None  # see `begin`
        return self.session.recorder

    def begin(
        self, schedule: Schedule | None, *, updates: int, facts: dict[str, Any], versions: Mapping[str, str]
    ) -> Recorder:
        """Training begins.

        Args:
            schedule: The plan; None if there is none.
            updates: Policy updates made before (a resumed run).
            facts: What else is known of the run.
            versions: Releases of the packages involved.
        """
        return self.session.begin(
            Run(
                name=self._run,
                schedule=schedule,
                versions=versions,
                facts=facts,
                start_updates=updates,
                world_size=schedule.world_size if schedule is not None else 1,
                controlled=self._controlled,
            )
        )

    def cannot_follow(self, reason: str) -> bool:
        """Record why the run cannot be followed, if it cannot.

        Args:
            reason: The framework's own reason; empty if there is none.

        Returns:
            Whether it cannot.
        """
        # Trainers pass on what they saw through files of the same folder.
        reason = reason or self.session.trouble
        if reason:
            self.recorder.cannot("order", reason)
        return bool(reason)

    def all_returned(self, purpose: Purpose) -> None:
        """Record that all trainers have returned from their calls."""
        called, self.called = self.called, []
        for name in called:
            number = self._calls.get(name, 0)
            self._calls[name] = number + 1
            call = Phase(at=self.recorder.now(), name=name, number=number, purpose=purpose)
            if self.sink is not None:
                self.sink.wait_for_call(call, self.recorder)
            self.recorder.emit(call)

    def take_error(self) -> Finding | None:
        """Judge what waits; return the error for which "stop" and "raise" end training."""
        self.recorder.settle()
        return self.session.error

    def end(self, error: BaseException | None = None) -> Report:
        """Training is over, or raised `error`: write the last lines, and print the report."""
        self.session.end(error)
        return self.session.report
