"""A recorded run as a Chrome trace, which Perfetto and chrome://tracing open: one track a process.

The format: "Trace Event Format", Google, complete events (`ph` X), metadata (M), instants (i) and flows (s, f). A record has the end of
each event but not its beginning, so a slice begins where the event before it in the same process ended.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from rlstep_hooks.judge.conformance import observed_lag
from rlstep_hooks.record.events import (
    AnyEvent,
    Attached,
    EpochEnd,
    Generated,
    MicroBatch,
    Phase,
    Refresh,
    Rollout,
    RunEnded,
    RunStarted,
    Unobserved,
    Update,
    WeightSync,
)
from rlstep_hooks.record.ledger import CONTROLLER
from rlstep_hooks.record.wire import to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.record.ledger import Record

_MICROSECONDS = 1_000_000
_SHOWN_FINDINGS = 64


def write_trace(found: Iterable[Record], report: Report, path: Path) -> int:
    """Write the trace of one run.

    Args:
        found: The records of the run's processes.
        report: The report of the run, whose findings are marked.
        path: The file to write; an existing one is replaced.

    Returns:
        Events written.
    """
    written = 0
    with path.open("wb") as file:
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[')
        for event in trace_events(found, report):
            file.write(b",\n" if written else b"\n")
            file.write(to_json(event))
            written += 1
        file.write(b"\n]}\n")
    return written


def trace_events(found: Iterable[Record], report: Report) -> Iterator[dict[str, Any]]:
    """The trace's events, process by process."""
    tracks = [_Track(number, *known) for number, known in enumerate(filter(None, map(_beginning, found)))]
    if not tracks:
        return
    zero = min(track.started for track in tracks)
    # The controller first: it makes the rollouts that its trainers consume.
    for track in sorted(tracks, key=lambda track: track.process != CONTROLLER):
        yield from track.slices(zero, tracks)
    yield from _marks(report, tracks)


def _beginning(record: Record) -> tuple[Record, RunStarted | Attached] | None:
    """A record with its first event; None if the record has no other event."""
    events = record.events()
    first = next(events, None)
    if not isinstance(first, RunStarted | Attached) or next(events, None) is None:
        return None
    return record, first


class _Track:
    """One process. Its number in the trace is not that of the operating system."""

    def __init__(self, number: int, record: Record, first: RunStarted | Attached) -> None:
        self.number = number
        self.process = record.process
        self.rank = record.rank
        self.started = first.started
        self.rollouts: list[float] = []
        """When each training rollout of this process was done, in order. A trainer that a controller calls makes none."""
        self._record = record
        self._name = f"{record.process} ({first.host}, pid {first.pid})" if first.host else record.process

    def _microseconds(self, event: AnyEvent, zero: float) -> float:
        return round((self.started - zero + event.at) * _MICROSECONDS, 1)

    def slices(self, zero: float, tracks: Sequence[_Track]) -> Iterator[dict[str, Any]]:
        """The process's name, its slices, and the arrows from rollouts to them."""
        number = self.number
        yield {"ph": "M", "name": "process_name", "pid": number, "args": {"name": self._name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": number, "args": {"sort_index": number}}
        before = max((self.started - zero) * _MICROSECONDS, 0.0)
        arrows = 0
        for event in self._record.events():
            now = self._microseconds(event, zero)
            if isinstance(event, Phase) and self.process != CONTROLLER:
                before = now  # a trainer writes it when the call begins
                continue
            described = _described(event)
            if described is None:
                continue
            title, lane, arguments = described
            duration = max(now - before, 0.0)
            yield {
                "ph": "X",
                "name": title,
                "ts": round(now - duration, 1),
                "dur": round(duration, 1),
                "pid": number,
                "tid": lane,
                "args": arguments,
            }
            if isinstance(event, Rollout | Generated) and event.purpose == "training":
                self.rollouts.append(now)
            elif isinstance(event, Update):
                yield from _arrow(_maker(self, tracks), self, now, f"{number}.{arrows}")
                arrows += 1
            before = now


def _maker(track: _Track, tracks: Sequence[_Track]) -> _Track:
    """The process that makes the rollouts of a process: itself, or the controller."""
    if track.rollouts:
        return track
    return next((other for other in tracks if other.process == CONTROLLER), track)


def _arrow(maker: _Track, track: _Track, now: float, name: str) -> Iterator[dict[str, Any]]:
    """An arrow from the latest rollout to an update. Its ends lie just within their slices."""
    rollout = bisect_right(maker.rollouts, now) - 1
    if rollout < 0:
        return
    arrow = {"name": "consumed by", "cat": "rollout", "id": name}
    made = maker.rollouts[rollout]
    yield {"ph": "s", **arrow, "ts": round(made - 0.1, 1), "pid": maker.number, "tid": _LANES["rollout"]}
    yield {"ph": "f", "bp": "e", **arrow, "ts": round(now - 0.1, 1), "pid": track.number, "tid": _LANES["train"]}


_LANES = {"rollout": 1, "refresh": 2, "train": 3, "sync": 4, "other": 5}


def _described(event: AnyEvent) -> tuple[str, int, dict[str, Any]] | None:
    """An event's title, its lane in the process, and its arguments; None for one that takes no time."""
    if isinstance(event, Rollout):
        kind = "rollout" if event.purpose == "training" else "evaluation"
        versions = {"policy_version": event.policy_version, "sampler_version": event.sampler_version}
        return f"{kind} {event.index}", _LANES["rollout"], {"samples": event.samples, **versions}
    if isinstance(event, Generated):
        kind = "rollout" if event.purpose == "training" else "evaluation"
        labels = {str(label): samples for label, samples in event.labels}
        return f"{kind} {event.index}", _LANES["rollout"], {"samples": event.samples, "samples_by_weight_label": labels}
    if isinstance(event, Refresh):
        version = {"policy_version": event.policy_version}
        return f"old log-probs of rollout {event.rollout}", _LANES["refresh"], {"samples": event.samples, **version}
    if isinstance(event, MicroBatch):
        lag = {"lag": observed_lag(event), "policy_version": event.policy_version, "old_version": event.old_version}
        return f"{_role(event.role)}micro-batch {event.index}", _LANES["train"], {"samples": event.samples, **lag}
    if isinstance(event, Update):
        title = f"{_role(event.role)}update {event.index}" + ("" if event.applied else " (skipped)")
        made = {"version": event.version, "microbatches": event.microbatches, "learning_rate": event.learning_rate}
        return title, _LANES["train"], made
    if isinstance(event, WeightSync):
        return (
            f"weight sync v{event.policy_version}",
            _LANES["sync"],
            {"policy_version": event.policy_version, "label": event.label},
        )
    if isinstance(event, Phase):
        lane = {"refresh": "refresh", "sync": "sync"}.get(event.name, "train")
        return f"{event.name.replace('_', ' ')} {event.number}", _LANES[lane], {"call": event.number}
    if isinstance(event, EpochEnd):
        return f"end of data epoch {event.epoch}", _LANES["other"], {}
    if isinstance(event, Unobserved):
        return f"not observed: {event.what}", _LANES["other"], {"why": event.why}
    if isinstance(event, RunEnded):
        return f"run {event.status}", _LANES["other"], {"updates": event.updates}
    return None


def _role(role: str) -> str:
    return "critic " if role == "critic" else ""


def _marks(report: Report, tracks: Sequence[_Track]) -> Iterator[dict[str, Any]]:
    """The findings, each at the rollout that it names, or at the beginning if it names none.

    A finding counts rollouts as the judge does: in a resumed run, from those made before it. It stands in the track of the process
    that it names; without one, in that of the process that makes the rollouts.
    """
    by_rank = {track.rank: track for track in tracks if track.rank is not None}
    first = next((track for track in tracks if track.process == CONTROLLER), tracks[0])
    for finding in report.findings[:_SHOWN_FINDINGS]:
        where = finding.where
        track = first if where.rank is None else by_rank.get(where.rank, first)
        made = _maker(track, tracks).rollouts
        own = -1 if where.rollout is None else where.rollout - report.rollouts_before
        told = {"expected": finding.expected, "observed": finding.observed, "why": finding.why, "fix": finding.fix}
        yield {
            "ph": "i",
            "name": f"{finding.severity.upper()} {finding.code} {finding.title}",
            "ts": made[own] if 0 <= own < len(made) else 0.0,
            "s": "g",
            "pid": track.number,
            "tid": _LANES["other"],
            "args": {"where": str(where), **told},
        }
