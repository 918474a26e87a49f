"""Reports of recorded runs: the same judge, reading from files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.controlled.compose import TrainerStream
from rlstep_hooks.judge.controlled.live import recorded_phases
from rlstep_hooks.judge.controlled.run import ControlledRun
from rlstep_hooks.judge.deviations import DeviationsOf, none_known
from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.ranks.merge import merge_ranks
from rlstep_hooks.planning.words import printable
from rlstep_hooks.record.describe import describe
from rlstep_hooks.record.events import AnyEvent, Attached, RunStarted, Unobserved
from rlstep_hooks.record.ledger import CONTROLLER, Record, read_lines, records
from rlstep_hooks.record.tail import Tail, other_than_recorded, unknown_from_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.judge.watcher import Watcher
    from rlstep_hooks.planning.finding import Finding, Verdict
    from rlstep_hooks.record.events import AnyEvent

    _Watch = Callable[[AnyEvent, list[Finding]], None]

ROOM_FOR_A_LINE = 4096
"""Bytes that a disk must have free to take another line of a record."""

NO_END = "its process was interrupted or killed, or still trains"
"""Why a record has no end, as far as its files tell."""

MOST_NAMED = 20
"""Largest number of damaged files that a report names."""


class NoRecordError(LookupError):
    """A folder holds no record of the run asked for."""


def report_of(
    folder: Path,
    run: str | None = None,
    *,
    deviations_of: DeviationsOf = none_known,
    watcher: Watcher | None = None,
) -> Report:
    """The report of one recorded run, finished or not.

    Args:
        folder: The folder of records.
        run: Name of the run; None for the latest.
        deviations_of: The known deviations of frameworks.
        watcher: Sees the events of all judged trainers.

    Raises:
        NoRecordError: There is no such record.
    """
    runs = records(folder) if folder.is_dir() else {}
    if not runs:
        raise NoRecordError(f"{folder} holds no record (files named <run>.<process>.jsonl)")
    if run is not None and run not in runs:
        raise NoRecordError(f"{folder} holds no run {run}; it has {', '.join(runs)}")
    return report_of_records(folder, runs[run or latest_run(runs)], deviations_of=deviations_of, watcher=watcher)


def replay(found: Sequence[Record], rank: int, watcher: Watcher) -> None:
    """Judge one trainer of a recorded run once more, for a watcher that now knows what to look at."""
    judge = Judge()
    _judge_all(judge, trainer_events(found, rank), _watching(judge, watcher, rank))


def latest_run(runs: dict[str, list[Record]]) -> str:
    """The run that is meant if none is named: the latest one whose records begin as they should."""
    whole = [name for name, found in runs.items() if not all(map(_without_beginning, found))]
    return whole[-1] if whole else next(reversed(runs))


def other_runs(folder: Path, run: str) -> str:
    """The other runs of a folder, in one line; empty if there are none."""
    runs = records(folder)
    others = [name for name in runs if name != run]
    if not others:
        return ""
    told = [name if not all(map(_without_beginning, runs[name])) else f"{name} (no record of a run)" for name in others]
    more = f" and {len(told) - MOST_NAMED} more" if len(told) > MOST_NAMED else ""
    return f"this is run {run}; {folder} also holds {', '.join(told[:MOST_NAMED])}{more} (--run NAME)"


def trainer_events(found: Sequence[Record], rank: int) -> Iterator[AnyEvent]:
    """One trainer's events as a judge reads them, in order, without keeping them.

    Args:
        found: The records of a run.
        rank: Rank of the trainer. Without a record of it or calls of a controller there are no events.
    """
    controller = next((record for record in found if record.process == CONTROLLER), None)
    if controller is not None:
        stream = TrainerStream(rank, recorded_phases(controller.path.parent, controller.run, rank))
        for event in Tail(controller.path).read():
            yield from stream.feed(event)
        return
    for record in found:
        if record.rank == rank:
            yield from _read(record.path)


def _read(path: Path) -> Iterator[AnyEvent]:
    """The events of a record, from its first to its last. Where they are not those that its process recorded, this is said first,
    because nobody knows at which line it began."""
    why = other_than_recorded(path)
    if why:
        yield from unknown_from_here(why)
    yield from Tail(path).read()


def report_of_records(
    folder: Path,
    found: list[Record],
    *,
    deviations_of: DeviationsOf = none_known,
    watcher: Watcher | None = None,
) -> Report:
    """The report of one run whose records are known. Arguments as in `report_of`."""
    controller = next((record for record in found if record.process == CONTROLLER), None)
    problems = [] if controller else [problem for record in found if (problem := _without_beginning(record))]
    first = controller or next((record for record in found if not _without_beginning(record)), found[0])
    judge = (
        ControlledRun(lambda rank: recorded_phases(first.path.parent, first.run, rank), deviations_of, watcher)
        if controller
        else Judge(deviations_of)
    )
    last = _judge_all(judge, _read(first.path), _watching(judge, watcher, first.rank or 0))
    problems += [f"{record.path.name} ends within its last line" for record in found if record.ends_within_a_line()]
    report = msgspec.structs.replace(judge.report(), run=first.run)
    if "record" in report.not_evaluated:
        problems.append(report.not_evaluated["record"])
    if controller and judge.run is None:
        problems.append(f"{first.path.name} does not say how the run began")
    if isinstance(judge, Judge) and judge.run is not None:
        # A damaged first line may not name the run; the file's name does.
        report = merge_ranks(
            report, folder, msgspec.structs.replace(judge.run, run=first.run), wait=0.0, deviations_of=deviations_of
        )
    if judge.ended is None:
        problems.append(f"the record ends {last:.1f} s after it began, before training did: {NO_END}")
        # The rest of its plan was not observed.
        verdict: Verdict = "FAIL" if report.verdict == "FAIL" else "NOT_EVALUATED"
        report = msgspec.structs.replace(report, ending="cut", verdict=verdict)
        if _is_full(folder):
            full = {"recording": f"the disk that holds {folder} is full, so that nothing more could be written"}
            report = msgspec.structs.replace(report, not_evaluated=report.not_evaluated | full)
    if problems:
        report = msgspec.structs.replace(
            report, not_evaluated=report.not_evaluated | {"record": "; ".join(problems[:MOST_NAMED])}
        )
    return report


def _is_full(folder: Path) -> bool:
    """Whether the disk of a folder has no room for another line."""
    disk = os.statvfs(folder)
    return disk.f_frsize * disk.f_bavail < ROOM_FOR_A_LINE


def _without_beginning(record: Record) -> str:
    """What is wrong with the beginning of a record; empty if nothing is. A record with a wrong beginning is left out."""
    event, problem = next(read_lines(record.path), (None, f"{record.path.name} is empty"))
    if isinstance(event, RunStarted | Attached):
        return ""
    return f"{record.path.name} does not say how the run began" + (f" ({problem})" if problem else "")


def _watching(judge: Judge | ControlledRun, watcher: Watcher | None, rank: int) -> _Watch | None:
    """The function that shows each event to a watcher; None for a controlled run, which shows each trainer's events itself."""
    if watcher is None or not isinstance(judge, Judge):
        return None
    return lambda event, findings: watcher.watch(rank, event, judge, findings)


def _judge_all(judge: Judge | ControlledRun, events: Iterable[AnyEvent], watch: _Watch | None) -> float:
    """Have events judged. A damaged record may hold impossible events; the others are judged without them.

    Returns:
        Seconds from the beginning of the record to its last event.
    """
    last = 0.0
    for recorded in events:
        event, findings = judged(judge, recorded)
        if watch is not None:
            watch(event, findings)
        if event.at > last:
            last = event.at
    return last


def judged(judge: Judge | ControlledRun, event: AnyEvent) -> tuple[AnyEvent, list[Finding]]:
    """Have one recorded event judged. One that cannot be judged becomes `Unobserved`: the record is damaged.

    Returns:
        What was judged, and what was found.
    """
    try:
        return event, judge.observe(event)
    except Exception as error:  # noqa: BLE001 - whatever such an event leads to, the report must say what it can
        why = f"the judge failed on {type(event).__name__} ({printable(describe(error))}): is the record damaged?"
        unobserved = Unobserved(at=event.at, what="order", why=why)
        return unobserved, judge.observe(unobserved)
