"""Exceptions in words, for a record."""

from __future__ import annotations

import re

from rlstep_hooks.record.events import INTERRUPTED

_FRAMES = re.compile(r'\s*(Traceback \(most recent call last\):|Original Traceback|File ".*", line \d+)')
"""A line with which a traceback begins inside the text of an exception."""


def describe(error: BaseException) -> str:
    """An exception's type and text.

    An exception that only carries another one from a worker process (its `cause`) is described as that one, and of a traceback inside
    its text the last line is left: the program itself prints the whole.
    """
    error = _carried(error)
    return f"{type(error).__name__}: {_without_traceback(str(error))}"


def describe_end(error: BaseException) -> str:
    """What ended training, as `RunEnded` says it: an exception's type and text, or that somebody interrupted the run.

    An interrupt (Ctrl-C) of a Ray driver, `ray job stop` and the time limit of a scheduler reach a process of Ray as SIGTERM. Ray's own
    handler raises SystemExit with this attribute (_private/worker.py:1062, 2.60.0). A script that calls `sys.exit` has none.
    """
    if isinstance(error, SystemExit) and "SIGTERM" in str(getattr(error, "ray_terminate_msg", "")):
        return f"{INTERRUPTED}: the process was told to end (SIGTERM)"
    return describe(error)


def _carried(error: BaseException) -> BaseException:
    carriers = [error]
    while isinstance(cause := getattr(carriers[-1], "cause", None), BaseException) and cause not in carriers:
        carriers.append(cause)
    return carriers[-1]


def _without_traceback(text: str) -> str:
    lines = text.splitlines()
    begins = next((at for at, line in enumerate(lines) if _FRAMES.match(line)), None)
    if begins is None:
        return text
    said = [line.strip() for line in (*lines[:begins], lines[-1]) if line.strip()]
    return " ".join(dict.fromkeys(said))
