"""What is asked of a rehearsal, and what its runs leave behind."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rlstep_hooks.judge.report import Report
from rlstep_hooks.rehearse.messages import Said


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the script."""

    status: int
    said: list[Said]
    output: list[str]
    """Its last lines."""
    report: Report | None = None
    seconds: float = 0.0
    timed_out: bool = False

    def of(self, topic: str) -> list[Said]:
        """What was said on a topic."""
        return [each for each in self.said if each.topic == topic]


class Rehearsed(msgspec.Struct, frozen=True, kw_only=True):
    """Both runs."""

    first: Part
    resumed: Part | None = None
    no_resume: str = ""
    """Why there is no second run."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asks of a rehearsal."""

    budget: float = 120.0
    rollouts: int | None = None
    resume: bool = True
    rows: int | None = None
    columns: tuple[str, ...] = ()
    online: bool = False
    cuda: bool = False
    html: Path | None = None
    """Where to write the page of the first run's report."""
