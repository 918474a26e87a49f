"""A recorded run as one side of a comparison."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.deviations import DeviationsOf, none_known
from rlstep_hooks.judge.replay import NoRecordError, report_of, trainer_events
from rlstep_hooks.judge.report import Report
from rlstep_hooks.record.events import RunStarted
from rlstep_hooks.record.ledger import Record, record_files, records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.record.events import AnyEvent


class RecordedRun(msgspec.Struct, frozen=True):
    """One run of a folder, with its report."""

    place: str
    """The folder that holds the run, or its URL."""
    found: tuple[Record, ...]
    report: Report

    @property
    def name(self) -> str:
        """The run's name in the names of its files."""
        return self.found[0].run

    @property
    def ranks(self) -> list[int]:
        """Ranks of the trainers that have a record."""
        return [record.rank for record in self.found if record.rank is not None]

    @property
    def start_updates(self) -> int:
        """Updates made before this run began; above 0 if it was resumed."""
        first = next(self.events(self.ranks[0]), None) if self.ranks else None
        return first.start_updates if isinstance(first, RunStarted) else 0

    def events(self, rank: int) -> Iterator[AnyEvent]:
        """One trainer's events as a judge reads them, in order, without keeping them."""
        return trainer_events(self.found, rank)


def is_recorded(place: str) -> bool:
    """Whether a text names a folder, or a run in a folder of records (`FOLDER/RUN`), and not a launch."""
    # Path.is_dir would raise for a launch command that is too long for a file name.
    folder, name = os.path.split(place)
    return os.path.isdir(place) or (os.path.isdir(folder or ".") and name in record_files(Path(folder)))


def recorded_run(place: str, *, deviations_of: DeviationsOf = none_known) -> RecordedRun:
    """The latest run in a folder, or the run named by `FOLDER/RUN`.

    Raises:
        NoRecordError: There is no such run.
    """
    path = Path(place)
    folder, name = (path, None) if path.is_dir() else (path.parent, path.name)
    runs = records(folder) if folder.is_dir() else {}
    if not runs or (name is not None and name not in runs):
        raise NoRecordError(f"{place} holds no record (files named <run>.<process>.jsonl)")
    chosen = name or next(reversed(runs))
    return RecordedRun(str(folder), tuple(runs[chosen]), report_of(folder, chosen, deviations_of=deviations_of))
