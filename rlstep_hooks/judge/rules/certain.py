"""Values so far off that no rounding explains them: a warning in one or two micro-batches, an error in several, and an error at once
where the value is of a whole rollout or update, or where a known mistake gives it to rounding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from rlstep_hooks.judge.rules.base import Rule

if TYPE_CHECKING:
    from rlstep_hooks.judge.rules.progress import Progress
    from rlstep_hooks.planning.finding import Finding, Severity

BEYOND_ROUNDING = 100
"""Times the tolerance, after which no rounding explains a value."""

SEVERAL = 3
"""Micro-batches with such a value that make it certain."""

_CERTAIN = "certain"


class ValueRule(Rule):
    """A rule about a value with a tolerance. Its findings are warnings until they are certain."""

    severity = "warning"
    exact = False
    several: ClassVar[int] = SEVERAL
    """Values that make it certain. 1 where a value is of a whole rollout or update, so that it stands for many numbers."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._certain = 0
        """Values that no rounding explains."""

    def fail_by(self, distance: float, *, degree: str = "", known: bool = False, **fields: Any) -> Finding | None:
        """Report a value.

        Args:
            distance: From what was expected, in tolerances.
            known: Whether a known mistake gives this value to rounding. That beside such a distance is certain in one micro-batch.
            degree: As in `fail`, of values that are not certain.
            fields: Those of `fail`.

        Returns:
            The finding, if it is the first of its kind, or if it was a warning and is an error now.
        """
        certain = distance > BEYOND_ROUNDING
        self._certain += certain
        severity: Severity = "error" if self._certain >= self.several or (certain and known) else "warning"
        found = self.fail(severity=severity, degree=_CERTAIN if certain else degree, **fields)
        return found or (self._make_certain() if self._certain == self.several else None)

    def _make_certain(self) -> Finding | None:
        """What was a warning, because one or two micro-batches showed it, is an error."""
        raised = None
        for (_, degree, *_), reported in self._reported.items():
            if degree == _CERTAIN and reported.finding.severity == "warning" and not reported.finding.deviation:
                raised = reported.finding = msgspec.structs.replace(reported.finding, severity="error")
        return raised
