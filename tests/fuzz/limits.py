"""What a fuzzed call may use."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class HangError(AssertionError):
    """A call took more processor time than any input explains."""


class _LimitReached(BaseException):
    """Raised where the call is; a reader that contains every `Exception` does not contain it."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End what runs here with a `HangError` after this much processor time; a busy machine does not count."""

    def stop(*_: object) -> None:
        raise _LimitReached

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    except _LimitReached:
        raise HangError(f"more than {seconds} s of processor time") from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
