"""An exception in words, for a record."""

from __future__ import annotations

from rlstep_hooks.record.events import INTERRUPTED


def describe(error: BaseException) -> str:
    """An exception's type and text."""
    return f"{type(error).__name__}: {error}"


def describe_end(error: BaseException) -> str:
    """What ended training, as `RunEnded` says it: an exception's type and text, or that somebody interrupted the run.

    An interrupt (Ctrl-C) of a Ray driver, `ray job stop` and the time limit of a scheduler reach a process of Ray as SIGTERM. Ray's own
    handler raises SystemExit with this attribute (_private/worker.py:1062, 2.60.0). A script that calls `sys.exit` has none.
    """
    if isinstance(error, SystemExit) and "SIGTERM" in str(getattr(error, "ray_terminate_msg", "")):
        return f"{INTERRUPTED}: the process was told to end (SIGTERM)"
    return describe(error)
