"""Leaves the audit's own frames out of the traceback that a dying program prints. The exception passes through the program unchanged;
only what is printed at its very end is shorter."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType

_OWN = str(Path(__file__).parents[2]) + os.sep
"""The folder of this package."""

_CALLER = f"{os.sep}wrapt{os.sep}"
"""Part of the file names of the package that calls our hooks."""


def install() -> None:
    """Have the program's own `sys.excepthook` print a shorter traceback."""
    shown = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        with suppress(Exception):  # then the traceback is as long as it was
            leave_out_own(error)
        shown(kind, error, error.__traceback__ or trace)

    sys.excepthook = show


def leave_out_own(error: BaseException) -> None:
    """Take our frames out of the traceback of an exception and of those that it came from; a fault of our own stays whole."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _without_own(one.__traceback__, whole=not _is_told(one))
        waiting += [one.__cause__, one.__context__]


def _is_told(error: BaseException) -> bool:
    """Whether the exception is the one that tells of a finding: where it is raised says nothing."""
    return type(error).__name__ == "StepAuditError"


def _without_own(trace: TracebackType | None, *, whole: bool) -> TracebackType | None:
    entries: list[TracebackType] = []
    at = trace
    while at is not None:
        entries.append(at)
        at = at.tb_next
    if not entries or (whole and _is_own(entries[-1])):
        return trace
    kept: TracebackType | None = None
    for entry in reversed([each for each in entries if not _is_own(each)]):
        kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return kept or trace


def _is_own(entry: TracebackType) -> bool:
    name = entry.tb_frame.f_code.co_filename
    return name.startswith(_OWN) or _CALLER in name
