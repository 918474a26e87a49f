"""What is asked of a rehearsal, and what its runs leave behind."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from rlstep_hooks.judge.report import Report
from rlstep_hooks.rehearse.messages import Said

_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: |$)")
"""The line that ends a traceback; all others of it are indented."""
_OF_NOBODY = re.compile(r"Exception ignored|Exception in thread|Error in atexit|--- Logging error")
"""What stands before a traceback that ended nothing."""
_OF_RAY = re.compile(r"ray\.exceptions\.\w+")
"""Ray's own exception: below it, indented, stands the traceback of the process that raised, and at its end what that raised."""
_OF_A_WORKER = re.compile(r"(\x1b\[\d+m)*\([\w:.]+ pid=\d+")


def _cause(lines: list[str], raised: int) -> int:
    """The place of the exception that another process raised, where Ray tells of it; else that of the exception itself."""
    while _OF_RAY.match(lines[raised]):
        after = next((at for at in range(raised + 1, len(lines)) if not lines[at].startswith(" ")), None)
        if after is None or after == raised + 1 or not (_EXCEPTION.match(lines[after]) or _OF_RAY.match(lines[after])):
            break
        raised = after
    return raised


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the script."""

    status: int
    said: list[Said]
    output: list[str]
    """The last lines that the launch printed."""
    report: Report | None = None
    seconds: float = 0.0
    timed_out: bool = False
    confined: bool = False
    """Whether the system held all of its processes to the places that they may write to."""
    scratch: tuple[str, ...] = ()
    """Places that its processes may write to, beside the temporary folder."""

    @property
    def last(self) -> str:
        """What ended the script: the exception that it raised, else its own last line.

        Ray prints what its workers say with their names in front, also after the script's exception; and while Python ends, threads and
        finalizers may raise more, which ended nothing.
        """
        raised = self._raised
        return self._own[raised] if raised is not None else (self._own or [""])[-1]

    @property
    def story(self) -> list[str]:
        """The script's own last lines up to what ended it, without it: `last` says that."""
        raised = self._raised
        return self._own[:raised] if raised is not None else self._own[:-1]

    @property
    def _own(self) -> list[str]:
        return [line for line in self.output if not _OF_A_WORKER.match(line)] or self.output

    @property
    def _raised(self) -> int | None:
        """The place of the exception that ended the script; None if it shows none."""
        lines, found = self._own, None
        for begin in (number for number, line in enumerate(lines) if line.startswith(_TRACEBACK)):
            if begin and _OF_NOBODY.match(lines[begin - 1]):
                continue
            end = next((at for at in range(begin + 1, len(lines)) if _EXCEPTION.match(lines[at])), None)
            found = _cause(lines, end) if end is not None else found
        return found

    def of(self, topic: str) -> list[Said]:
        """What was said on a topic."""
        return [each for each in self.said if each.topic == topic]


class Rehearsed(msgspec.Struct, frozen=True, kw_only=True):
    """Both runs of a rehearsal: the whole one, and the one that goes on from its checkpoint."""

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
