"""One of many launch files that are planned together: its plan, its findings with their lines, and what differs from before."""

from __future__ import annotations

import msgspec

from rlstep_hooks.launch.text import Place
from rlstep_hooks.planning.comparison import QuantityDifference
from rlstep_hooks.planning.finding import Finding
from rlstep_hooks.planning.launched import Plan


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A finding of a plan, and the line of the launch that it is about."""

    finding: Finding
    place: Place


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """One launch file, as it is planned among many."""

    path: str
    plan: Plan | None = None
    """The plan of the file's launch; None if the file holds no known launch, or one that cannot be planned."""
    reason: str = ""
    """Why the file cannot be planned; empty where it is planned, or holds no launch."""
    place: Place | None = None
    """The place in the file that cannot be read."""
    findings: tuple[Placed, ...] = ()
    before: Plan | None = None
    """The plan of the file as it was; None if it had none, or nothing is compared."""
    reason_before: str = ""
    """Why the file as it was could not be planned, or was no launch; empty if it could, or nothing is compared."""
    differences: tuple[QuantityDifference, ...] = ()
    """What differs from the plan before."""

    @property
    def was(self) -> str:
        """What the launch was: accepted, refused or not planned, with the reason; empty where nothing is compared."""
        compared = self.before is not None or self.reason_before
        return _outcome(self.before, self.reason_before) if compared else ""

    @property
    def now(self) -> str:
        """What the launch is now: its plan in words, or why it has none."""
        return _outcome(self.plan, self.reason)

    @property
    def is_launch(self) -> bool:
        """Whether it is a launch of a known system."""
        return self.plan is not None or bool(self.reason)


def _outcome(plan: Plan | None, reason: str) -> str:
    if plan is None:
        return f"not planned ({reason})"
    refusal = next((each for each in plan.findings if each.code == REFUSED and each.severity == "error"), None)
    return "accepted" if refusal is None else f"refused ({refusal.observed})"


REFUSED = "RLS110"
"""The finding of what the framework itself refuses."""
