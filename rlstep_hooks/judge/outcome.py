"""The outcome of one rule."""

from __future__ import annotations

import msgspec

from rlstep_hooks.planning.finding import Verdict

SAMPLED = "all of the first rollouts are compared, and few of the later ones"
"""Why a rule that recomputes numbers looks at a part of a long run."""


class RuleOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of one rule in one run."""

    code: str
    title: str
    verdict: Verdict
    checks: int = 0
    """Number of comparisons that the rule made."""
    missed: int = 0
    """Number of comparisons that the rule could not make in this run, beside those it made."""
    share: str = ""
    """In how many rollouts the rule compared something, where the observer compares only some rollouts: "8 of 16 rollouts"."""
    of_plan: bool = False
    """Whether the rule finds what the plan shows, so that its outcome says nothing of what the run did."""
    note: str = ""
    """What limits the rule's checks to less than its title says."""
    unproved: str = ""
    """The deployment that the run was made in, if this project never proved there what the rule compares: "FSDP2", "ZeRO-3,
    LoRA"."""
    reason: str = ""
    """Why the rule was not evaluated, or why it could not make some of its comparisons."""
    idle: bool = False
    """Whether the rule was not evaluated only because the run never did what it checks."""

    @property
    def coverage(self) -> str:
        """The comparisons made, if some could not be: "24 of 32"; otherwise empty."""
        return f"{self.checks} of {self.checks + self.missed}" if self.missed else ""

    @property
    def part(self) -> str:
        """How much of the run the rule looked at, if not all, and why not the rest; otherwise empty."""
        if self.missed:
            return f"{self.coverage} comparisons, because {self.reason}"
        return f"{self.share}, because {SAMPLED}" if self.share else ""
