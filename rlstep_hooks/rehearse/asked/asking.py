"""Calls a function with questions in a process of its own, under a time limit.

The process is a fork: it has the user's function as it is, without importing it again; it can be ended whatever the function does (a
regular expression that backtracks without end holds Python's lock, so that no thread and, off the main thread, no signal gets through);
and what the function remembers or draws at random stays as it was. A fork is not everything that the process was: threads, an event
loop's connections and CUDA are gone. So each one first answers a question whose answer is known, and where it cannot, nothing is said
of the function.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import sys
import time
import traceback
import warnings
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Question = Callable[[], list[float | None]]

_SHOWN = 300
"""Characters of an exception that are kept."""

_asked = False


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of one question."""

    rewards: tuple[float | None, ...] = ()
    failed: str = ""
    """What the function raised, as a traceback ends, or what became of the process; empty if it gave rewards."""
    hung: float = 0.0
    """Seconds after which the question was ended without an answer; 0 if it was not ended."""

    @property
    def answered(self) -> bool:
        """Whether the function gave rewards."""
        return not self.failed and not self.hung


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long questions may take, in seconds."""

    each: float
    first: float
    """How long the first question may take, which the function has answered before: a pool of processes that did not come along
    answers after its own time limit, and not with what it would give."""
    until: float
    """The moment of `time.monotonic` after which nothing more is asked."""


def is_asked() -> bool:
    """Whether this process is one that only answers questions."""
    return _asked


def answers(questions: Sequence[Question], limits: Limits) -> list[Answer | None]:
    """Ask questions in their order, in one process of its own.

    Returns:
        An answer for each question; None for one that was not asked, because the process had hung or ended or time was over.
    """
    found: list[Answer | None] = [None] * len(questions)
    reading, writing = os.pipe()
    with warnings.catch_warnings():  # Python 3.12 warns that threads do not come along
        warnings.simplefilter("ignore")
        process = os.fork()
    if not process:
        os.close(reading)
        _answer_all(questions, writing)
    os.close(writing)
    status = None
    try:
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            rest = b""
            for number in range(len(questions)):
                left = limits.until - time.monotonic()
                if left <= 0:
                    return found
                limit = limits.each if number else limits.first
                seconds = min(limit, left)
                line, rest = _line(pipe, rest, seconds)
                if line is None:
                    if seconds == limit:
                        found[number] = Answer(hung=seconds)
                    return found
                if not line:
                    status = os.waitpid(process, 0)[1]
                    found[number] = Answer(failed=_ended(status))
                    return found
                told = json.loads(line)
                found[number] = Answer(failed=told["failed"], rewards=tuple(told["rewards"]))
    finally:
        if status is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process, signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(process, 0)
    return found


def _line(pipe: Any, rest: bytes, seconds: float) -> tuple[bytes | None, bytes]:
    """The next line and what came after it; None if none came in time, empty if none will come."""
    until = time.monotonic() + seconds
    while b"\n" not in rest:
        left = until - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            return None, rest
        more = pipe.read(65536)
        if not more:
            return b"", rest
        rest += more
    line, _, rest = rest.partition(b"\n")
    return line, rest


def _ended(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"ended its process by the signal {signal.Signals(os.WTERMSIG(status)).name}"
    return f"ended its process with the status {os.WEXITSTATUS(status)}"


def _answer_all(questions: Sequence[Question], writing: int) -> None:
    """The forked process; it never returns."""
    global _asked
    _asked = True
    try:
        os.setpgid(0, 0)  # its own children end with it
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        faulthandler.disable()  # what ends this process is told, and not to the user's terminal
        _one_thread()
        for question in questions:
            try:
                told: dict[str, Any] = {"failed": "", "rewards": question()}
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is the answer
                last = traceback.format_exception_only(type(error), error)[-1].strip()
                told = {"failed": f"raised {last[:_SHOWN]}", "rewards": []}
            os.write(writing, json.dumps(told).encode() + b"\n")
    finally:
        os._exit(0)


def _one_thread() -> None:
    """OpenMP's threads do not come along, and torch would wait for them (torch's own loader does the same in its workers)."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
