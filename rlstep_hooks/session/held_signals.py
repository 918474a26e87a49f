"""Holds signals back for the moment in which the end of a record is written.

Who ends a process may signal twice: Ray sends SIGTERM to a worker because its owner died and again because its job finished (raylet of
2.60.0, some 10 ms apart), and people press Ctrl-C again. The first signal has the end written; the second would raise out of the
writing, and the record would have none.

What is held is delivered right after, by the handler that was there before. A signal that nobody can hold is SIGKILL, and Ray ends an
actor whose owner died from a thread of its own, without any signal (`docs/reports.md`).
"""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HELD = (signal.SIGINT, signal.SIGTERM)
"""What a person, Ray or a scheduler sends to a process that should end."""

LONGEST = 5.0
"""Seconds for which signals are held, at most. Writing an end takes milliseconds; a disk that hangs takes any time."""


@contextmanager
def signals_held(longest: float = LONGEST) -> Iterator[None]:
    """A context at whose end `HELD` signals that came within it are delivered.

    Does nothing in a thread other than the main one, which alone runs handlers, and where a thread cannot be started any more.

    Args:
        longest: Seconds after which signals are delivered although the context has not been left.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held = _Held()
    clock = threading.Timer(longest, held.give_up)
    clock.daemon = True
    try:
        clock.start()
    except RuntimeError:  # the interpreter is ending, and starts no thread any more
        yield
        return
    held.begin()
    try:
        yield
    finally:
        clock.cancel()
        held.deliver()


class _Held:
    """Signals that are held, and the handlers that they are held from."""

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        """The handler that was there before, by signal, as long as ours stands in its place."""
        self._came: list[int] = []
        """Signals that came and were not delivered, each once."""
        self._given_up = False
        self._ours: Callable[[int, Any], None] = self._note
        """Our handler as one object, by which it is recognised."""

    def begin(self) -> None:
        """Put our handler in the place of those that may end what runs."""
        for number in HELD:
            handler = signal.getsignal(number)
            if _may_interrupt(handler):
                self._handlers[number] = handler
                signal.signal(number, self._ours)

    def _note(self, number: int, frame: Any) -> None:
        if self._given_up:
            self._restore(number)
            signal.raise_signal(number)
        elif number not in self._came:
            self._came.append(number)

    def give_up(self) -> None:
        """Deliver what has come, and hold nothing any more. Called by another thread; handlers run in the main one."""
        self._given_up = True
        came, self._came = self._came, []
        for number in came:
            signal.pthread_kill(_ident_of_main_thread(), number)

    def deliver(self) -> None:
        """Put the handlers back, and deliver what has come. What one handler raises does not keep the others from being called."""
        for number in tuple(self._handlers):
            self._restore(number)
        came, self._came = self._came, []
        with ExitStack() as stack:
            for number in reversed(came):
                stack.callback(signal.raise_signal, number)

    def _restore(self, number: int) -> None:
        handler = self._handlers.pop(number, None)
        if handler is not None and signal.getsignal(number) is self._ours:
            signal.signal(number, handler)


def _ident_of_main_thread() -> int:
    ident = threading.main_thread().ident
    assert ident is not None  # it has been started
    return ident


def _may_interrupt(handler: Any) -> bool:
    """Whether a signal with this handler may break off what runs.

    One that is ignored does not, and one whose handler is not Python's (None) could not be put back. The handler of asyncio does
    nothing: its loop learns of the signal by other means, and would learn of it twice (asyncio/unix_events.py, Python 3.10 to 3.13).
    """
    known = handler is not None and handler is not signal.SIG_IGN
    return known and getattr(handler, "__module__", "") != "asyncio.unix_events"
