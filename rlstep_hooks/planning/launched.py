"""The plan of a launch: its Schedule with formulas, notes on silent effects, and findings."""

from __future__ import annotations

import msgspec

from rlstep_hooks.launch.settings import Setting
from rlstep_hooks.planning.finding import Finding
from rlstep_hooks.planning.reading import Formula, Note
from rlstep_hooks.planning.schedule import Schedule


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the user adds to a launch command."""

    framework: str | None = None
    version: str | None = None
    here: bool = False
    """Whether the launch is about to run in this environment: it is then planned for the release that is installed."""
    rows: int | None = None
    world_size: int | None = None
    variables: dict[str, str] = {}
    """`--set NAME=VALUE`: variables of a script, or settings of the launch."""
    line: int | None = None
    """Line of the command, in a script with several."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a launch."""

    framework: str
    """Name of the system."""
    title: str
    version: str
    source: str
    """Where the launch was read: "the launch command" or a file's name."""
    schedule: Schedule | None
    """The schedule of the launch; None if the framework would refuse it."""
    meant: Schedule | None = None
    """The schedule that the sizes of a refused launch give, if they can be computed without the condition that fails."""
    formulas: tuple[Formula, ...] = ()
    notes: tuple[Note, ...] = ()
    findings: tuple[Finding, ...] = ()
    unused: tuple[Setting, ...] = ()
    """Settings that were given and that the plan did not read."""
    no_effect: tuple[str, ...] = ()
    """The names of the unused settings that were read in the framework's source: the schedule does not depend on them."""
    foreign: tuple[str, ...] = ()
    """Settings that no release has: the launch is one of a fork."""

    @property
    def shown(self) -> Schedule | None:
        """The schedule, also that of the sizes of a refused launch."""
        return self.schedule if self.schedule is not None else self.meant


def plan_of(schedule: Schedule, source: str, findings: tuple[Finding, ...] = ()) -> Plan:
    """The plan of a schedule alone, which no launch gave: that of a record or of a live configuration.

    Args:
        schedule: The schedule.
        source: Where it was read.
        findings: What is wrong with it.
    """
    return Plan(
        framework=schedule.framework.lower(),
        title=schedule.framework,
        version=schedule.version,
        source=source,
        schedule=schedule,
        findings=findings,
    )
