"""An audited launch of verl or OpenRLHF, whose controller and trainers each leave a record."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlstep_hooks.judge.controlled.live import recorded_phases
from rlstep_hooks.judge.replay import NoRecordError
from rlstep_hooks.planning.finding import Where
from rlstep_hooks.record.events import AnyEvent, Judged
from rlstep_hooks.record.ledger import CONTROLLER, Record, records
from tests.detection.outcomes import Delay, delay_of
from tests.reports import ControlledRun, report_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.planning.finding import Finding
    from tests.systems.processes import Outcome


@dataclass(frozen=True)
class Audited:
    """A launch with its records.

    Attributes:
        report: Judged again from the records.
        live: What the run itself judged at its end; None where it did not come so far.
        folder: The records.
    """

    outcome: Outcome
    report: Report
    live: Judged | None
    folder: Path

    def record(self, process: str) -> list[AnyEvent]:
        """The events of one process of the run."""
        return next((list(found.events()) for found in self._records() if found.process == process), [])

    def processes(self) -> list[str]:
        """Names of the processes that left a record."""
        return [found.process for found in self._records()]

    def findings(self) -> list[Finding]:
        """Every finding when it first came up, in the order of the run."""
        judge = self._judge()
        return [finding for event in self.record(CONTROLLER) for finding in judge.observe(event)]

    def delay(self, code: str, rollout: int | None) -> Delay | None:
        """How long after the first event of a rollout a rule named it; None if it never did."""
        return delay_of(self.record(CONTROLLER), self._judge(), code, Where(rollout=rollout))

    def _judge(self) -> ControlledRun:
        return ControlledRun(lambda rank: recorded_phases(self.folder, self.report.run, rank))

    def _records(self) -> list[Record]:
        (run,) = records(self.folder).values()
        return run


RAY_STANDS = "Started a local Ray instance"
"""What `ray.init` writes when its node has registered (ray/_private/worker.py, 2.55)."""

PORT_LOST = "EADDRINUSE"
"""A free port was chosen for a group of trainers, which listens on it when it has loaded; another process may be first."""


def audited_launch(attempt: Callable[[], Outcome], log: Path) -> Audited:
    """Launch, once more where the machine and not the run was at fault, and read what it left.

    Ray gives its own node 30 seconds to register (ray/_private/node.py:411, 2.55), which a loaded machine may take. Such a launch
    fails before Ray says that it stands, so before any process of the run exists.

    Args:
        attempt: Makes one launch.
        log: Where its records are.
    """
    outcome = attempt()
    if outcome.status and (RAY_STANDS not in outcome.output or PORT_LOST in outcome.output):
        shutil.rmtree(log, ignore_errors=True)
        outcome = attempt()
    return read(outcome, log)


def read(outcome: Outcome, log: Path) -> Audited:
    """The records of a launch that has ended.

    Raises:
        AssertionError: It left none; the message has the end of what it wrote.
    """
    try:
        report = report_of(log)
    except NoRecordError as error:
        raise AssertionError(f"{error}; its status was {outcome.status}, and it ended with\n{outcome.tail}") from error
    controller = next(found for found in records(log)[report.run] if found.process == CONTROLLER)
    live = next((event for event in controller.events() if isinstance(event, Judged)), None)
    return Audited(outcome, report, live, log)
