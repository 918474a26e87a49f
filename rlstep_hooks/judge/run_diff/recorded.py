"""A recorded run as one side of a comparison."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.replay import NoRecordError, report_of, trainer_events
from rlstep_hooks.judge.report import Report
from rlstep_hooks.planning.launched import Plan
from rlstep_hooks.record.events import RunStarted
from rlstep_hooks.record.ledger import Record, record_files, records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.events import AnyEvent


class RecordedRun(msgspec.Struct, frozen=True):
    """One run of a folder, with its report."""

    place: str
    """The folder that holds it, or the URL of one."""
    found: tuple[Record, ...]
    report: Report

    @property
    def name(self) -> str:
        """The run's name, as in its files."""
        return self.found[0].run

    @property
    def ranks(self) -> list[int]:
        """Its trainers that left a record."""
        return [record.rank for record in self.found if record.rank is not None]

    @property
    def start_updates(self) -> int:
        """Updates made before this run began; above 0 where it was resumed."""
        first = next(self.events(self.ranks[0]), None) if self.ranks else None
        return first.start_updates if isinstance(first, RunStarted) else 0

    def events(self, rank: int) -> Iterator[AnyEvent]:
        """One trainer's events as a judge reads them, in order, without keeping them."""
        return trainer_events(self.found, rank)


def is_recorded(place: str) -> bool:
    """Whether a text names a folder, or a run in a folder of records (`FOLDER/RUN`), rather than a launch."""
    # Not Path.is_dir, which raises where a long launch command is no possible name of a file.
    folder, name = os.path.split(place)
    return os.path.isdir(place) or (os.path.isdir(folder or ".") and name in record_files(Path(folder)))


def recorded_run(place: str) -> RecordedRun:
    """The run that a folder holds, the latest if there are several; or a named one of it, as `FOLDER/RUN`.

    Raises:
        NoRecordError: There is none.
    """
    path = Path(place)
    folder, name = (path, None) if path.is_dir() else (path.parent, path.name)
    runs = records(folder) if folder.is_dir() else {}
    if not runs or (name is not None and name not in runs):
        raise NoRecordError(f"{place} holds no record (files named <run>.<process>.jsonl)")
    chosen = name or next(reversed(runs))
    return RecordedRun(str(folder), tuple(runs[chosen]), report_of(folder, chosen))


def recorded_plan(schedule: Schedule, source: str) -> Plan:
    """The plan that a run was made with, as a side of a comparison of plans."""
    return Plan(
        framework=schedule.framework.lower(),
        title=schedule.framework,
        version=schedule.version,
        source=source,
        schedule=schedule,
    )
