"""Signals are held back for a moment, and nothing of them is lost."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.session.held_signals import HELD, signals_held

if TYPE_CHECKING:
    from collections.abc import Iterator

END, STOP = signal.SIGTERM, signal.SIGINT


class Told:
    """A handler that knows what it was called for, and may raise."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.raises: dict[int, type[BaseException]] = {}

    def handle(self, number: int, frame: Any) -> None:
        self.numbers.append(number)
        if number in self.raises:
            raise self.raises[number]


@pytest.fixture
def told() -> Iterator[Told]:
    """What handles both signals of this process while a test runs."""
    seen = Told()
    before = {number: signal.signal(number, seen.handle) for number in HELD}
    yield seen
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_is_delivered_at_the_end_and_once(told: Told) -> None:
    with signals_held():
        for number in (END, STOP, END):
            signal.raise_signal(number)
        assert told.numbers == []
    assert told.numbers == [END, STOP]
    signal.raise_signal(END)
    assert told.numbers == [END, STOP, END]


def test_nothing_is_delivered_where_nothing_came(told: Told) -> None:
    with signals_held():
        pass
    assert told.numbers == []


def hold(*numbers: int, error: Exception | None = None) -> None:
    """Hold these signals, and raise an error after them."""
    with signals_held():
        for number in numbers:
            signal.raise_signal(number)
        if error is not None:
            raise error


def test_what_one_handler_raises_does_not_keep_another_from_being_called(told: Told) -> None:
    told.raises = {END: SystemExit}
    with pytest.raises(SystemExit):
        hold(END, STOP)
    assert told.numbers == [END, STOP]


def test_an_error_within_goes_on_and_what_came_is_delivered(told: Told) -> None:
    with pytest.raises(ValueError, match="broken on purpose"):
        hold(END, error=ValueError("broken on purpose"))
    assert told.numbers == [END]


def test_two_contexts_deliver_once(told: Told) -> None:
    with signals_held():
        with signals_held():
            signal.raise_signal(END)
        assert told.numbers == []
    assert told.numbers == [END]


def test_what_takes_too_long_holds_nothing(told: Told) -> None:
    """Both what came before the time was over and what comes after it."""
    with signals_held(longest=0.001):
        signal.raise_signal(END)
        while not told.numbers:
            time.sleep(0.001)
        signal.raise_signal(END)
        assert told.numbers == [END, END]
        signal.raise_signal(STOP)
        assert told.numbers == [END, END, STOP]
    assert told.numbers == [END, END, STOP]


def test_a_handler_that_the_run_places_meanwhile_stays(told: Told) -> None:
    own = Told()
    with signals_held():
        signal.signal(END, own.handle)
    signal.raise_signal(END)
    assert (own.numbers, told.numbers) == ([END], [])


def test_an_ignored_signal_stays_ignored(told: Told) -> None:
    signal.signal(END, signal.SIG_IGN)
    with signals_held():
        assert signal.getsignal(END) is signal.SIG_IGN
        assert signal.getsignal(STOP) != told.handle


def test_a_loop_of_asyncio_learns_of_a_signal_once(told: Told) -> None:
    async def loop() -> None:
        asyncio.get_running_loop().add_signal_handler(END, told.numbers.append, END)
        with signals_held():
            signal.raise_signal(END)
        for _ in range(10):
            await asyncio.sleep(0)
        asyncio.get_running_loop().remove_signal_handler(END)

    asyncio.run(loop())
    assert told.numbers == [END]


def test_another_thread_holds_nothing(told: Told) -> None:
    handlers: list[Any] = []

    def look() -> None:
        with signals_held():
            handlers.append(signal.getsignal(END))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert handlers == [told.handle]


def test_nothing_is_held_where_no_thread_can_be_started(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with signals_held():
        signal.raise_signal(END)
        assert told.numbers == [END]


def test_a_signal_that_ends_the_process_ends_it_afterwards() -> None:
    """The default of SIGTERM, which calls no handler."""
    script = (
        "import signal\n"
        "from rlstep_hooks.session.held_signals import signals_held\n"
        "with signals_held():\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
        "    print('written', flush=True)\n"
        "print('too late', flush=True)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (-END, "written\n"), ended.stderr
