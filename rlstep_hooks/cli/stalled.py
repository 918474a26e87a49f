"""Says once of a silence how a run stands still, from what is on the disk: its processes are not asked."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rlstep_hooks.judge.stillness import SHORT, stillness
from rlstep_hooks.record.ledger import record_files
from rlstep_hooks.show.stillness import stillness_lines

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.record.ledger import Record

SELDOMER = 1.5
"""The records are read again after this many times the silence at which they were read before."""


class StallWatch:
    """Watches the files of one run.

    Args:
        folder: The folder of records.
        run: Its name.
        after: Seconds of silence after which it is told; None where it is told once that is much longer than ever before in the run.
    """

    def __init__(self, folder: Path, run: str, after: float | None = None) -> None:
        self._folder = folder
        self._run = run
        self._after = after
        self._written = 0.0
        self._told = False
        self._looks_at = SHORT if after is None else after

    def look(self) -> list[str]:
        """What is to be said now, in lines; nothing in most looks."""
        records = record_files(self._folder).get(self._run, [])
        written = max((_written(record) for record in records), default=0.0)
        if written > self._written:
            self._written, self._told = written, False
            self._looks_at = SHORT if self._after is None else self._after
        silent = time.time() - written
        if self._told or not records or silent < self._looks_at:
            return []
        self._looks_at = SELDOMER * silent
        found = stillness(records, time.time())
        if found is None or (self._after is None and not found.is_long):
            return []
        self._told = True
        return stillness_lines(found)


def _written(record: Record) -> float:
    try:
        return record.path.stat().st_mtime
    except OSError:
        return 0.0
