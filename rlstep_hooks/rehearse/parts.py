"""What is asked of a rehearsal, and what its runs leave behind."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from rlstep_hooks.judge.report import Report
from rlstep_hooks.rehearse.messages import Said

_OF_A_WORKER = re.compile(r"(\x1b\[\d+m)*\([\w:.]+ pid=\d+")


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the script."""

    status: int
    said: list[Said]
    output: list[str]
    """Its last lines."""
    report: Report | None = None
    seconds: float = 0.0
    timed_out: bool = False
    confined: bool = False
    """Whether the system held all of its processes to the places that they may write to."""
    scratch: tuple[str, ...] = ()
    """These places, beside the temporary folder."""

    @property
    def last(self) -> str:
        """The script's own last line: Ray prints what its workers say with their names in front, also after the script's exception."""
        own = [line for line in self.output if not _OF_A_WORKER.match(line)]
        return (own or self.output or [""])[-1]

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
