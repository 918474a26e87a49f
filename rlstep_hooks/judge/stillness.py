"""What each process of a run did last, since when nothing came of it, and how long that took in this run before.

It reads what was recorded and asks nothing of the run. A process that computes for long and one that hangs look alike from outside, so
nothing here says that a run hangs: it says how much longer than ever before it has been silent, and what comes next at this place.
"""

from __future__ import annotations

import os
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlstep_hooks.judge.following import runs_here
from rlstep_hooks.record.events import (
    Attached,
    EpochEnd,
    Generated,
    MicroBatch,
    Phase,
    PhaseEnded,
    Refresh,
    Rollout,
    RunEnded,
    RunStarted,
    Update,
    WeightSync,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rlstep_hooks.record.events import AnyEvent
    from rlstep_hooks.record.ledger import Record

SHORT = 30.0
"""Seconds of silence that are never worth a word: a first compilation, a checkpoint."""
LONGER = 5.0
"""How many times as long as ever before at this place, and as any silence, is worth a word."""

_KINDS: dict[type, str] = {
    Rollout: "a rollout",
    Generated: "a rollout",
    Refresh: "old log-probs",
    MicroBatch: "a micro-batch",
    Update: "an update",
    WeightSync: "a weight sync",
    EpochEnd: "the end of a data epoch",
    RunEnded: "the end of training",
}
"""What a process does, by its event."""


@dataclass(frozen=True)
class Silence:
    """One process since its last event.

    Attributes:
        process: The name of the process, such as "rank 1".
        last: What it did last; empty if it has only begun.
        rollouts: Rollouts that it has seen.
        updates: Updates of the policy that it has made.
        seconds: How long ago that was.
        next: What comes next at this place, as it did before in this run; empty if this place is new.
        usual: Median seconds until that came.
        longest: The most seconds until that came.
        ever: The longest silence of this process before, whatever came next; None if there was none.
        within: The controller's call that it is within, such as "update_actor"; empty outside of one.
        gone: Whether it ran on this machine and no longer runs.
    """

    process: str
    last: str
    rollouts: int
    updates: int
    seconds: float
    next: str = ""
    usual: float | None = None
    longest: float | None = None
    ever: float | None = None
    within: str = ""
    gone: bool = False

    @property
    def is_long(self) -> bool:
        """Whether it has been silent for much longer than ever before."""
        known = [of for of in (self.longest, self.ever) if of is not None]
        return self.seconds > SHORT and bool(known) and self.seconds > LONGER * max(known)


@dataclass(frozen=True)
class Stillness:
    """All processes of a run that is not over.

    Attributes:
        processes: The processes whose records have no end.
        waited_for: The names of those that the others wait for, as far as the records show it: processes that are gone, or that
            have done less than the others.
    """

    processes: tuple[Silence, ...]
    waited_for: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """How long nothing at all was recorded."""
        return min((of.seconds for of in self.processes), default=0.0)

    @property
    def is_long(self) -> bool:
        """Whether every process has been silent for much longer than ever before, or one is gone and the others wait."""
        alive = [of for of in self.processes if not of.gone]
        left = len(alive) < len(self.processes) and self.seconds > SHORT
        return bool(alive) and (left or all(of.is_long for of in alive))


def stillness(records: Iterable[Record], now: float) -> Stillness | None:
    """How a run stands still; None if it is over, or all its processes are gone.

    Args:
        records: The records of all processes of the run.
        now: Unix time.

    Raises:
        OSError: A record cannot be read.
    """
    found = [(record, silence) for record in records if (silence := silence_of(record, now)) is not None]
    processes = tuple(silence for _, silence in found)
    if all(of.gone for of in processes):
        return None
    trainers = [silence for record, silence in found if record.rank is not None]
    return Stillness(processes, _waited_for(processes, trainers))


def silence_of(record: Record, now: float) -> Silence | None:
    """One process since its last event; None if its record has an end, or no beginning."""
    first: RunStarted | Attached | None = None
    history = _History()
    for event in record.events():
        if isinstance(event, RunStarted | Attached):
            first = first or event
        elif isinstance(event, RunEnded):
            return None
        if first is not None:
            history.see(event, begins_calls=isinstance(first, Attached))
    if first is None:
        return None
    gone = first.host == os.uname().nodename and not runs_here(first.pid)
    name = record.process if record.rank is None else f"rank {record.rank}"
    return history.silence(name, now - first.started, gone=gone)


def _waited_for(processes: Sequence[Silence], trainers: Sequence[Silence]) -> tuple[str, ...]:
    gone = tuple(of.process for of in processes if of.gone)
    if gone or len({(of.rollouts, of.updates, of.last) for of in trainers}) < 2:
        return gone
    least = min((of.updates, of.rollouts) for of in trainers)
    behind = [of.process for of in trainers if (of.updates, of.rollouts) == least]
    return tuple(behind) if len(behind) < len(trainers) else ()


class _History:
    """The events of one process: what followed what, and after how long."""

    def __init__(self) -> None:
        self._followed: defaultdict[tuple[object, ...], Counter[str]] = defaultdict(Counter)
        self._took: defaultdict[tuple[tuple[object, ...], str], list[float]] = defaultdict(list)
        self._place: tuple[object, ...] = ()
        self._last = ""
        self._at = 0.0
        self._rollouts = self._updates = 0
        self._since_rollout: Counter[str] = Counter()
        self._ever: float | None = None
        self._calls: list[str] = []

    def see(self, event: AnyEvent, *, begins_calls: bool) -> None:
        """See one event; a trainer writes a call when it begins, and the controller when it has returned."""
        kind = _KINDS.get(type(event), "")
        if isinstance(event, Phase) and begins_calls:
            self._calls.append(event.name)
        elif isinstance(event, Phase):
            kind = f"the call {event.name}"
        elif isinstance(event, PhaseEnded) and event.name in self._calls:
            self._calls.remove(event.name)
        took = max(event.at - self._at, 0.0)
        if self._last:
            self._ever = max(self._ever or 0.0, took)
        if kind and self._place:
            self._followed[self._place][kind] += 1
            self._took[self._place, kind].append(took)
        self._at = max(self._at, event.at)
        if not kind:
            return
        if isinstance(event, Rollout | Generated):
            self._rollouts += 1
            self._since_rollout.clear()
        self._since_rollout[kind] += 1
        self._updates += isinstance(event, Update) and event.role == "policy"
        self._last = kind
        # The same place in a rollout is the same number of each kind of event since it began.
        self._place = (kind, *sorted(self._since_rollout.items()))

    def silence(self, process: str, now: float, *, gone: bool) -> Silence:
        followed = self._followed.get(self._place)
        comes = followed.most_common(1)[0][0] if followed else ""
        took = self._took.get((self._place, comes), [])
        return Silence(
            process,
            self._last,
            self._rollouts,
            self._updates,
            max(now - self._at, 0.0),
            comes,
            statistics.median(took) if took else None,
            max(took, default=None),
            self._ever,
            self._calls[-1] if self._calls else "",
            gone,
        )
