"""A recorded run as a Chrome trace, which Perfetto and chrome://tracing open: one track a process.

The format: "Trace Event Format", Google, complete events (`ph` X), metadata (M), instants (i) and flows (s, f). A record says when
an event was over and not when it began, so a slice reaches from the event before it, in the same process, to itself.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import msgspec

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

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.record.ledger import Record

_MICROSECONDS = 1_000_000
_SHOWN_FINDINGS = 64


def write_trace(found: Iterable[Record], report: Report, path: Path) -> int:
    """Write the trace of one run.

    Args:
        found: The records of the run's processes.
        report: Its report, whose findings are marked.
        path: The file to write; an existing one is replaced.

    Returns:
        Events written.
    """
    encode = msgspec.json.Encoder().encode
    written = 0
    with path.open("wb") as file:
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[')
        for event in trace_events(found, report):
            file.write(b",\n" if written else b"\n")
            file.write(encode(event))
            written += 1
        file.write(b"\n]}\n")
    return written


def trace_events(found: Iterable[Record], report: Report) -> Iterator[dict[str, Any]]:
    """The trace's events, process by process."""
    tracks = [track for record in found if (track := _Track.of(record)) is not None]
    if not tracks:
        return
    zero = min(track.started for track in tracks)
    generated = sorted(moment for number, track in enumerate(tracks) for moment in track.rollouts(zero, number))
    for number, track in enumerate(tracks):
        yield from track.slices(number, zero, generated)
    yield from _marks(report, generated)


class _Track:
    """One process."""

    def __init__(self, record: Record, started: float, pid: int, host: str) -> None:
        self.started = started
        self._record = record
        self._pid = pid
        self._host = host

    @classmethod
    def of(cls, record: Record) -> _Track | None:
        """The track of a record; None for one that shows nothing but that its process was there."""
        events = record.events()
        first = next(events, None)
        if not isinstance(first, RunStarted | Attached) or next(events, None) is None:
            return None
        return cls(record, first.started, first.pid, first.host)

    def _microseconds(self, event: AnyEvent, zero: float) -> float:
        return round((self.started - zero + event.at) * _MICROSECONDS, 1)

    def rollouts(self, zero: float, number: int) -> list[tuple[float, int]]:
        """When each training rollout of this process was done, and on which track."""
        return [
            (self._microseconds(event, zero), number)
            for event in self._record.events()
            if isinstance(event, Rollout | Generated) and event.purpose == "training"
        ]

    def slices(self, number: int, zero: float, generated: list[tuple[float, int]]) -> Iterator[dict[str, Any]]:
        """The process's name, its slices, and the ends of flows from rollouts."""
        name = f"{self._record.process} ({self._host}, pid {self._pid})" if self._host else self._record.process
        yield {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": number, "args": {"sort_index": number}}
        before = max((self.started - zero) * _MICROSECONDS, 0.0)
        flows = 0
        for event in self._record.events():
            now = self._microseconds(event, zero)
            if isinstance(event, Phase) and self._record.process != CONTROLLER:
                before = now  # a trainer writes it when the call begins
                continue
            described = _described(event)
            if described is None:
                continue
            title, lane, arguments = described
            duration = max(now - before, 0.0)
            place = {"pid": number, "tid": lane}
            yield {
                "ph": "X",
                "name": title,
                "ts": round(now - duration, 1),
                "dur": round(duration, 1),
                **place,
                "args": arguments,
            }
            if isinstance(event, Update):
                yield from _flow(generated, now, number, f"{number}.{flows}")
                flows += 1
            before = now


def _flow(generated: list[tuple[float, int]], now: float, number: int, name: str) -> Iterator[dict[str, Any]]:
    """An arrow from the latest rollout to an update that consumes it. Its ends lie just within their slices."""
    rollout = bisect_right(generated, (now, len(generated))) - 1
    if rollout < 0:
        return
    made, track = generated[rollout]
    flow = {"name": "consumed by", "cat": "rollout", "id": name}
    yield {"ph": "s", **flow, "ts": round(made - 0.1, 1), "pid": track, "tid": _LANES["rollout"]}
    yield {"ph": "f", "bp": "e", **flow, "ts": round(now - 0.1, 1), "pid": number, "tid": _LANES["train"]}


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


def _marks(report: Report, generated: list[tuple[float, int]]) -> Iterator[dict[str, Any]]:
    """The findings, each at the rollout that it names; at the beginning where it names none."""
    for finding in report.findings[:_SHOWN_FINDINGS]:
        title = f"{finding.severity.upper()} {finding.code} {finding.title}"
        rollout = finding.where.rollout
        known = rollout is not None and rollout < len(generated)
        moment, track = generated[rollout] if known and rollout is not None else (0.0, 0)
        told = {"expected": finding.expected, "observed": finding.observed, "why": finding.why, "fix": finding.fix}
        arguments = {"where": str(finding.where), **told}
        yield {
            "ph": "i",
            "name": title,
            "ts": moment,
            "s": "g",
            "pid": track,
            "tid": _LANES["other"],
            "args": arguments,
        }
