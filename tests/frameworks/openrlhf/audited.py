"""An audited launch, and what it left."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlstep_hooks.controlled.live import recorded_phases
from rlstep_hooks.controlled.run import ControlledRun
from rlstep_hooks.events import AnyEvent, Judged
from rlstep_hooks.frameworks.openrlhf.launch import HOOK
from rlstep_hooks.ledger import CONTROLLER, Record, records
from rlstep_hooks.render.scalars import PREFIX
from rlstep_hooks.replay import report_of
from rlstep_hooks.report import Where
from tests.detection.outcomes import Delay, delay_of
from tests.frameworks.openrlhf.launch import launch
from tests.frameworks.tensorboard import Points, points, split

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rlstep_hooks.report import Finding, Report
    from tests.frameworks.processes import Outcome


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


def audited(
    flags: Mapping[str, Any],
    folder: Path,
    *,
    extensions: Path,
    prefix: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    limit: float = 400.0,
) -> Audited:
    """Train with the audit asked for by the two documented variables, or by a prefix (`rlstep run`).

    Args:
        flags: Flags of OpenRLHF.
        folder: Working directory of the command; records are in `log` below it.
        extensions: Where DeepSpeed keeps what it compiles.
        prefix: Words in front of the command.
        environment: More environment variables.
        limit: Seconds after which the run is ended.
    """
    log = folder / "log"
    asked = {} if prefix else {"RLSTEP_DIR": str(log), "RAY_RUNTIME_ENV_HOOK": HOOK}
    outcome = launch(
        flags,
        folder,
        prefix=prefix,
        environment={**asked, **(environment or {})},
        extensions=extensions,
        limit=limit,
    )
    report = report_of(log)
    controller = next(found for found in records(log)[report.run] if found.process == CONTROLLER)
    live = next((event for event in controller.events() if isinstance(event, Judged)), None)
    return Audited(outcome, report, live, log)


def alarms(report: Report) -> list[Finding]:
    """Errors and warnings."""
    return [finding for finding in report.findings if finding.severity != "info"]


NAMES = {"rollouts", "updates", "lag_max", "log_ratio_max_lag_0", "weight_version_age", "findings", "verdict"}
"""What a tracker shows of an audit."""


def tracked(folder: Path) -> dict[str, Any]:
    """Flags of a run with a tracker."""
    return {"logger.tensorboard_dir": folder / "tensorboard"}


def shown(outcome: Outcome) -> tuple[Points, Points]:
    """What the tracker shows of the audit, and of the run itself."""
    return split(points(outcome.folder / "tensorboard"), f"train/{PREFIX}")


def tail(outcome: Outcome) -> str:
    """The end of what all processes wrote."""
    return os.linesep.join(outcome.output.splitlines()[-60:])
