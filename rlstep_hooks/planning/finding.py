"""A finding: one thing that is wrong in a plan or in a run."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["error", "warning", "info"]
Verdict = Literal["PASS", "FAIL", "NOT_EVALUATED"]


class Where(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The place of an event in the run. All numbers count from 0; None if the place has no such number."""

    rollout: int | None = None
    update: int | None = None
    microbatch: int | None = None
    epoch: int | None = None
    rank: int | None = None

    def __str__(self) -> str:
        parts = [
            f"{name} {value}"
            for name, value in (
                ("rank", self.rank),
                ("data epoch", self.epoch),
                ("rollout", self.rollout),
                ("update", self.update),
                ("micro-batch", self.microbatch),
            )
            if value is not None
        ]
        return ", ".join(parts) or "the whole run"


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that is wrong, at the first place where it was seen."""

    code: str
    severity: Severity
    title: str
    expected: str
    observed: str
    where: Where
    why: str
    fix: str
    occurrences: int = 1
    deviation: str = ""
    """Name of the framework's known deviation that explains it."""
    planned: bool = False
    """Whether the plan and the settings alone show it, before training."""

    def __str__(self) -> str:
        lines = [
            f"{self.code} {self.title} ({self.where})",
            f"  expected: {self.expected}",
            f"  observed: {self.observed}",
            f"  why: {self.why}",
            f"  fix: {self.fix}",
        ]
        if self.occurrences > 1:
            lines.insert(3, f"  seen {self.occurrences} times; this is the first")
        return "\n".join(lines)
