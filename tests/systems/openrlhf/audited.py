"""An audited launch, and what it left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.show.scalars import PREFIX
from rlstep_hooks.systems.openrlhf.observe.ray_hooks import HOOK
from tests.systems.audited import Audited, audited_launch
from tests.systems.openrlhf.launch import launch
from tests.systems.tensorboard import Points, points, split

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.planning.finding import Finding
    from tests.systems.processes import Outcome


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

    def attempt() -> Outcome:
        return launch(
            flags,
            folder,
            prefix=prefix,
            environment={**asked, **(environment or {})},
            extensions=extensions,
            limit=limit,
        )

    return audited_launch(attempt, log)


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
