"""The records of vLLM's worker processes, as the controller of their run reads them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rlstep_hooks.record.events import AdapterUsed, Unobserved, WeightsHeld
from rlstep_hooks.record.tail import Tail

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.session.recorder import Recorder

_BEGINNING = "vllm"


def process_name() -> str:
    """The name of this worker process in its run."""
    return f"{_BEGINNING}{os.getpid()}"


class EngineRecords:
    """Passes what workers recorded on to the run's judge.

    Args:
        folder: Where all processes of the run record; workers on another machine are seen if they share it.
        run: Its name.
        recorder: Of the controller.
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
                if isinstance(event, WeightsHeld | AdapterUsed):
                    self._recorder.emit(event)
                elif isinstance(event, Unobserved):
                    self._recorder.cannot("delivery", event.why)
