"""Values so far off that nothing but a fault explains them.

A value beyond its tolerance is a warning. It is an error where no doubt is left: far beyond the tolerance in several micro-batches of
many tokens, or given to rounding by the same known mistake in several, or at once where a value stands for a whole rollout or update.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from rlstep_hooks.judge.rules.base import Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rlstep_hooks.judge.rules.progress import Progress
    from rlstep_hooks.planning.finding import Severity

BEYOND_ROUNDING = 100
"""Times the tolerance, after which no rounding explains a value."""

SEVERAL = 3
"""Micro-batches with such a value that make it certain."""

ENOUGH_TOKENS = 64
"""Tokens that such micro-batches must have together: a few tokens may be far off in any kernel."""

NAMED = 2
"""Times the tolerance, after which a known mistake that gives the value to rounding is no chance, if several micro-batches show it."""

_CERTAIN = "certain"


class ValueRule(Rule):
    """A rule about a value with a tolerance. Its findings are warnings until they are certain."""

    exact = False
    severity: ClassVar[Severity] = "warning"
    several: ClassVar[int] = SEVERAL
    """Values that make it certain. 1 where a value is of a whole rollout or update, so that it stands for many numbers."""
    beyond: ClassVar[Mapping[str, float]] = {"float32": BEYOND_ROUNDING, "reduced": BEYOND_ROUNDING}
    """Times the tolerance, after which nothing but a fault explains a value, by the class of the compute dtype."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._certain = 0
        """Values that no rounding explains."""
        self._tokens = 0
        """Tokens of the micro-batches that showed them."""
        self._named: Counter[str] = Counter()
        """Values that a known mistake gives, by its name."""

    def fail_by(
        self,
        distance: float,
        *,
        known: str = "",
        exact: bool = False,
        tokens: int | None = None,
        degree: str = "",
        beyond: float | None = None,
        **fields: Any,
    ) -> None:
        """Report a value. What was a warning may become an error by it.

        Args:
            distance: The distance from what was expected, in tolerances.
            known: The known mistake that gives this value to rounding; empty if none does.
            exact: Whether the numbers were compared in float64: a known mistake beside a certain distance is then certain at once.
            tokens: Tokens that the value is of; None if it is not a mean over tokens.
            degree: What `fail` takes by this name, for values that are not certain.
            beyond: What stands in the place of the rule's own `beyond`, where the rule compares several kinds of values.
            fields: The other arguments of `fail`.
        """
        certain = distance > (self.beyond[self.progress.precision] if beyond is None else beyond)
        variant = fields.get("variant", "")
        if certain:
            self._certain += 1
            self._tokens += ENOUGH_TOKENS if tokens is None else tokens
        if known and distance > NAMED:
            self._named[known] += 1
        beyond_doubt = self._certain >= self.several and self._tokens >= ENOUGH_TOKENS
        named = bool(known) and self._named[known] >= SEVERAL
        doubtless = named or (certain and (beyond_doubt or (exact and bool(known))))
        severity: Severity = "error" if doubtless else "warning"
        self.fail(severity=severity, degree=_CERTAIN if certain else degree, **fields)
        if beyond_doubt:
            self._raise(lambda of, how: how == _CERTAIN)
        if named:
            self._raise(lambda of, how: of == variant)

    def _raise(self, concerns: Callable[[str, str], bool]) -> None:
        """What was a warning, because one or two micro-batches showed it, is an error.

        Args:
            concerns: Whether a variant and a degree are those of such findings.
        """
        for (variant, degree, *_), reported in self._reported.items():
            warned = reported.finding.severity == "warning" and not reported.finding.deviation
            if warned and concerns(variant, degree):
                reported.finding = msgspec.structs.replace(reported.finding, severity="error")
                self.fresh.append(reported.finding)
