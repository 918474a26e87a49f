"""Forked children of one warm process: imports of torch and transformers are paid once."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path


@dataclass
class Child:
    """A child at work.

    Attributes:
        name: What it was started for.
        pid: Its process.
        reads: Where its answer comes from.
        until: When its time is over, of `time.monotonic`.
        answer: What it has sent so far.
    """

    name: str
    pid: int
    reads: int
    until: float
    answer: bytes = b""


def run_each(
    jobs: Iterable[tuple[str, Callable[[], dict[str, Any]]]], folder: Path, *, limit_s: float, at_once: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run each job in a child of its own, and give its answer when it ends.

    An answer is what the job returned, {"raised": ...} with its exception, or {"hung": True} after `limit_s` seconds.

    Args:
        jobs: Name and function of each.
        folder: Where each child's output goes, a file each.
        limit_s: Seconds that a child may take.
        at_once: How many children run at a time.
    """
    waiting = iter(jobs)
    running: list[Child] = []
    more = True
    while more or running:
        while more and len(running) < at_once:
            job = next(waiting, None)
            if job is None:
                more = False
            else:
                running.append(_start(*job, folder, limit_s))
        ready, _, _ = select.select([child.reads for child in running], [], [], 1.0)
        for child in list(running):
            if child.reads in ready:
                part = os.read(child.reads, 1 << 20)
                child.answer += part
                if part:
                    continue
            elif time.monotonic() < child.until:
                continue
            else:
                os.kill(child.pid, signal.SIGKILL)
                child.answer = b'{"hung": true}'
            os.close(child.reads)
            os.waitpid(child.pid, 0)
            running.remove(child)
            yield child.name, json.loads(child.answer or b'{"raised": "the process ended without an answer"}')


def _start(name: str, work: Callable[[], dict[str, Any]], folder: Path, limit_s: float) -> Child:
    reads, writes = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        os.close(writes)
        return Child(name, pid, reads, time.monotonic() + limit_s)
    try:
        os.close(reads)
        output = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = (os.fdopen(place, "w", buffering=1, closefd=False) for place in (1, 2))
        try:
            answer = work()
        except BaseException as error:  # noqa: BLE001 a mutant may raise anything
            traceback.print_exc()
            answer = {"raised": f"{type(error).__name__}: {error}"[:300]}
        with os.fdopen(writes, "wb") as stream:
            stream.write(json.dumps(answer).encode())
    finally:
        os._exit(0)
