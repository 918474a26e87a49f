"""The outcome of one rule."""

from __future__ import annotations

import msgspec

from rlstep_hooks.planning.finding import Verdict


class RuleOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of one rule in one run."""

    code: str
    title: str
    verdict: Verdict
    checks: int = 0
    """Number of comparisons that the rule made."""
    missed: int = 0
    """Number of comparisons that the rule could not make in this run, beside those it made."""
    note: str = ""
    """What limits its checks to less than its title says."""
    reason: str = ""
    """Why the rule was not evaluated."""
    idle: bool = False
    """Whether the rule was not evaluated only because the run never did what it checks."""

    @property
    def coverage(self) -> str:
        """The comparisons made, if some could not be: "24 of 32"; otherwise empty."""
        return f"{self.checks} of {self.checks + self.missed}" if self.missed else ""
