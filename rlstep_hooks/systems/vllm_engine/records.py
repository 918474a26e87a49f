"""The records of engine processes, as the controller of their run reads them, or a trainer that uses a server of vLLM's.

vLLM's workers write them, and the engine that stands in for one in a rehearsal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.record.events import AdapterUsed, Attached, KeysReused, Unobserved, WeightsHeld
from rlstep_hooks.record.tail import Tail

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rlstep_hooks.session.recorder import Recorder

_BEGINNING = "vllm"

_Told = WeightsHeld | AdapterUsed | KeysReused
"""What an engine tells its run."""


def process_name() -> str:
    """The name of this worker process in its run."""
    return f"{_BEGINNING}{os.getpid()}"


def engine_name(process: str) -> str:
    """The name of a worker process in findings."""
    return f"engine {process}"


class EngineRecords:
    """Passes what workers recorded on to the run's judge.

    Args:
        folder: Where all processes of the run record; workers on another machine are seen if they share it.
        run: The name of the run.
        recorder: The recorder of the controller.
    """

    def __init__(self, folder: Path, run: str, recorder: Recorder) -> None:
        self._folder = folder
        self._run = run
        self._recorder = recorder
        self._tails: dict[str, Tail] = {}

    def collect(self) -> None:
        """Read what is new."""
        for path in sorted(self._folder.glob(f"{self._run}.{_BEGINNING}*.jsonl")):
            for event in self._tails.setdefault(path.name, Tail(path)).read():
                if isinstance(event, _Told):
                    self._recorder.emit(event)
                elif isinstance(event, Unobserved):
                    self._recorder.cannot(event.what, event.why)


class ServedRecords:
    """What the engines of a server tell, as events of the one run that uses the server now.

    A server was there before the run and told of the runs before it. It counts anew when a trainer connects, and writes once more
    that it is attached. Numbers are those of this run here, from 0.

    Args:
        folder: Where the server's engines record.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._followed: dict[str, _Served] = {}
        for served in self._new():
            served.pass_over()

    def __len__(self) -> int:
        """How many engines tell what they hold."""
        return sum(served.alive for served in self._followed.values())

    def take(self, number: int) -> list[_Told | Unobserved]:
        """What is new, when no sync goes on.

        An engine on this machine writes of a sync before the server answers that it is over (`_after_update` in worker.py). Of a
        sync that it has not written of, nothing arrived.

        Args:
            number: The latest sync of this run; -1 before the first.
        """
        self._new()
        return [event for served in self._followed.values() for event in served.take(number)]

    def _new(self) -> list[_Served]:
        paths = (
            path for path in sorted(self._folder.glob(f"*.{_BEGINNING}*.jsonl")) if path.name not in self._followed
        )
        new = {path.name: _Served(path) for path in paths}
        self._followed |= new
        return list(new.values())


class _Served:
    """One engine's record."""

    def __init__(self, path: Path) -> None:
        self._tail = Tail(path)
        self._attached: Attached | None = None
        self._shift = 0
        """What is added to the engine's own number of a sync."""
        self._latest = -1
        """The number of the latest sync of this run that was told of."""

    @property
    def alive(self) -> bool:
        """Whether the engine may still be there."""
        return self._attached is not None and (not self._here or _runs(self._attached.pid))

    @property
    def _here(self) -> bool:
        return self._attached is not None and self._attached.host == os.uname().nodename

    def pass_over(self) -> None:
        """Leave out what was before this run."""
        own = -1
        for event in self._read():
            if isinstance(event, Attached):
                own = -1
            elif isinstance(event, WeightsHeld):
                own = event.number
        self._shift = -1 - own

    def take(self, number: int) -> list[_Told | Unobserved]:
        """The new events, and one for each sync up to a number of which the engine tells nothing."""
        found: list[_Told | Unobserved] = []
        for event in self._read():
            if isinstance(event, Attached):
                self._shift = self._latest + 1
                continue
            if isinstance(event, WeightsHeld):
                event = msgspec.structs.replace(event, number=event.number + self._shift)
                self._latest = max(self._latest, event.number)
            if isinstance(event, KeysReused):
                oldest = event.oldest if event.oldest < 0 else event.oldest + self._shift
                event = msgspec.structs.replace(event, number=event.number + self._shift, oldest=oldest)
            found.append(event)
        while self._latest < number and self._here and self.alive:
            assert self._attached is not None
            self._latest += 1
            self._shift += 1
            engine = engine_name(self._attached.process)
            found.append(WeightsHeld(number=self._latest, engine=engine, arrived=0, before=(), after=()))
        return found

    def _read(self) -> Iterator[Attached | _Told | Unobserved]:
        for event in self._tail.read():
            if isinstance(event, Attached):
                self._attached = event
            if isinstance(event, Attached | _Told | Unobserved):
                yield event


def _runs(pid: int) -> bool:
    """Whether a process of this machine runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
