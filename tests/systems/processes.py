"""Runs a command whose processes scatter, as Ray's do, under a time limit, and leaves none of them behind."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

MARK = "RLSTEP_TEST_LAUNCH"
"""An environment variable with the mark of a launch. A process that lost its parent is still found by what it inherited."""


@dataclass(frozen=True)
class Outcome:
    """What a launch left.

    Attributes:
        status: Exit status of the command; None if the time limit ended it.
        output: What all processes wrote.
        seconds: Wall time.
        folder: Working directory of the command; checkpoints and logs are below it.
        mark: What the environment of all its processes holds; see `marked`.
    """

    status: int | None
    output: str = field(repr=False)
    seconds: float
    folder: Path
    mark: str

    @property
    def tail(self) -> str:
        """The end of what all processes wrote."""
        return "\n".join(self.output.splitlines()[-60:])


@contextmanager
def ray_folder() -> Iterator[str]:
    """A folder for the files of one Ray, removed at the end.

    Of its own, so that no other Ray is found; short, because the paths of Ray's sockets are limited to 107 characters.
    """
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_marked(command: Sequence[str], folder: Path, *, environment: Mapping[str, str], limit: float) -> Outcome:
    """Run a command, and end every process that came of it.

    Args:
        command: The command line.
        folder: Its working directory, made where it is missing; what all processes write is in `output.txt` there.
        environment: All of its environment variables; the mark is added.
        limit: Seconds after which it is ended.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mark = uuid.uuid4().hex
    written = folder / "output.txt"
    begin = time.monotonic()
    with written.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**environment, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end_all(mark)
            process.wait()
    return Outcome(status, written.read_text(errors="replace"), time.monotonic() - begin, folder, mark)


def marked(mark: str) -> list[psutil.Process]:
    """The processes of one launch, also those that are children of nobody."""
    return inheriting(MARK, mark)


def inheriting(variable: str, below: str) -> list[psutil.Process]:
    """The processes with an environment variable whose value begins so."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(variable, "").startswith(below):
                found.append(process)
        except psutil.Error:
            continue
    return found


def _end_all(mark: str) -> None:
    """End the processes of one launch, and those that one of them started while the others were looked for.

    A Raylet that is not ended yet begins another worker for each that died, so one look is not enough.
    """
    until = time.monotonic() + 30
    while (processes := marked(mark)) and time.monotonic() < until:
        _end(processes)


def _end(processes: list[psutil.Process]) -> None:
    """End processes by their ids; psutil makes sure that an id still means the same process."""
    for process in processes:
        try:
            process.kill()
        except psutil.Error:
            continue
    psutil.wait_procs(processes, timeout=10)
