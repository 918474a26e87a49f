"""One trainer's record and its controller's, put together: the events of one process as a judge reads them.

Both records count the calls of each name, so they are matched by number; no clock is compared. The controller does not know
policy versions and a trainer does not know rollouts: each gets here what only the other one knows.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.record.events import (
    AnyEvent,
    Attached,
    FactsRead,
    Generated,
    Measured,
    MicroBatch,
    Phase,
    PhaseEnded,
    Refresh,
    Rollout,
    RolloutValues,
    RunEnded,
    RunStarted,
    SampleRows,
    Unobserved,
    Update,
    UpdateValues,
    WeightSync,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rlstep_hooks.record.events import PhaseName

REMEMBERED = 256
"""Labels and rollouts that are kept for events that refer to them; far more than any run is behind."""

_TRAINING: tuple[PhaseName, ...] = ("critic_updates", "policy_updates", "sync")


class TrainerPhases:
    """A trainer's records, cut into the calls of its controller. Reads no further than it must, so that little waits here.

    Policy and critic of one rank may be two processes with a record each; the first is the policy's.

    Args:
        reads: For each record, what gives the events that were added since the last look. It may be left before its end, and
            goes on from there.
    """

    def __init__(self, *reads: Callable[[], Iterable[AnyEvent]]) -> None:
        self._reads = reads
        self._waiting: dict[tuple[PhaseName, int], list[AnyEvent]] = {}
        self._between: list[AnyEvent] = []
        self._current = [self._between] * len(reads)
        self._records_of: dict[PhaseName, set[int]] = {}
        """Which records have calls of a name."""
        self._ended: set[tuple[PhaseName, int]] = set()
        """Calls that wait here with their end."""
        self._tells_ends = False
        self.cut: list[tuple[PhaseName, int]] = []
        """Calls that a record that says where calls end has no end of, once all of it was read."""
        self.attached: Attached | None = None
        self.facts: dict[str, object] = {}

    def arrived(self, name: PhaseName, number: int) -> bool:
        """Whether a record has a call to its end by now."""
        call = (name, number)
        growing = list(self._records_of.get(name) or range(len(self._reads)))
        while growing and not self._is_whole(call):
            growing = [record for record in growing if self._advance(record)]
        return self._is_whole(call)

    def take(self, name: PhaseName, number: int) -> list[AnyEvent] | None:
        """What happened within a call that has returned, and in no call before it; None if the trainer has no record of it."""
        call = (name, number)
        self.arrived(name, number)
        events = self._waiting.pop(call, None)
        self._ended.discard(call)
        if events is None:
            return None
        self._current = [self._between if current is events else current for current in self._current]
        return [*self._left(), *events]

    def between(self) -> list[AnyEvent]:
        """What happened in no call so far: before the first, or after one had returned and before the next."""
        for record, current in enumerate(self._current):
            if current is self._between:
                self._advance(record)
        return self._left()

    def rest(self) -> list[AnyEvent]:
        """What no call claimed, in order: numbers that came after the last call, and calls that the controller did not make."""
        for record in range(len(self._reads)):
            while self._advance(record):
                pass
        events = [event for call in self._waiting.values() for event in call]
        self.cut = [call for call in self._waiting if self._tells_ends and call not in self._ended]
        self._waiting.clear()
        self._ended.clear()
        return [*self._left(), *events]

    def _left(self) -> list[AnyEvent]:
        events = self._between.copy()
        self._between.clear()
        return events

    def _is_whole(self, call: tuple[PhaseName, int]) -> bool:
        """Whether a call was read to its end: where its record says so, or begins the next one."""
        events = self._waiting.get(call)
        return events is not None and (call in self._ended or not any(current is events for current in self._current))

    def _advance(self, record: int) -> bool:
        """Read a record to where its next call begins or ends; False if there is none yet."""
        for event in self._reads[record]():
            if isinstance(event, Attached):
                self.attached = event if record == 0 else self.attached
            elif isinstance(event, FactsRead):
                self.facts |= event.facts
            elif isinstance(event, Phase):
                self._current[record] = self._waiting.setdefault((event.name, event.number), [])
                self._records_of.setdefault(event.name, set()).add(record)
                return True
            elif isinstance(event, PhaseEnded):
                self._ended.add((event.name, event.number))
                self._tells_ends = True
                return True
            else:
                self._current[record].append(event)
        return False


class TrainerStream:
    """The events of one trainer's run as a judge reads them, from the controller's events as they come."""

    def __init__(self, rank: int, phases: TrainerPhases) -> None:
        self.rank = rank
        self.missed: list[Phase] = []
        """Calls that the controller made and this trainer has no record of; a few of them, the first."""
        self.lost = False
        """Whether the order of events cannot be known on one side: what this trainer has no record of is then no finding."""
        self._phases = phases
        self._started: RunStarted | None = None
        self._held: Generated | None = None
        self._reference: bool | None = None
        """Whether the rollout that is held back has its reference; None as long as nothing has followed it."""
        self._unrecorded: list[PhaseName] = []
        """Calls to processes that leave no record."""
        self._after_held: list[AnyEvent] = []
        self._base = 0
        """Updates before this run, which a trainer does not know."""
        self._version = 0
        self._labels: OrderedDict[int, int] = OrderedDict()
        self._rollout = -1
        self._sampled: OrderedDict[int, int | None] = OrderedDict()
        self._rollout_of_refresh: OrderedDict[int, int] = OrderedDict()
        self._refreshes = 0

    def feed(self, event: AnyEvent) -> list[AnyEvent]:
        """Take one event of the controller.

        Returns:
            The events that are complete with it. A rollout is held back until it is known what came with it.
        """
        if isinstance(event, RunStarted):
            self._started = event
            self._version = self._base = event.start_updates
            self._unrecorded = event.facts.get("unrecorded", [])
            label = event.facts.get("first_label")
            if label is not None:  # the engine loads the weights that training starts from, without a sync
                _remember(self._labels, label, self._base)
            return []
        if isinstance(event, Phase):
            return self._call(event)
        if isinstance(event, Unobserved):
            self.lost = self.lost or event.what == "order"
            return [*self._begin(), event]
        if isinstance(event, RunEnded):
            if event.status == "raised":  # perhaps before, or within, the call for the reference
                self._reference = self._reference or None
            return [*self._begin(), *self._release(), *self._rest(event), event]
        if isinstance(event, Generated) and event.purpose == "training":
            complete = [*self._begin(), *self._release(), *map(self._placed, self._phases.between())]
            self._held = event
            return complete
        if isinstance(event, Generated):
            event = self._rollout_event(event)
        if self._held is not None:
            self._after_held.append(event)
            return self._begin()
        return [*self._begin(), event]

    def lacks(self, call: Phase) -> bool:
        """Whether the trainer should have a record of a call that has returned, and has none to its end by now."""
        return call.name not in self._unrecorded and not self._phases.arrived(call.name, call.number)

    def _begin(self) -> list[AnyEvent]:
        """The run's first event, once: what the trainer read from its model belongs to it."""
        started, self._started = self._started, None
        if started is None:
            return []
        before = list(map(self._placed, self._phases.between()))
        first = msgspec.structs.replace(started, rank=self.rank, facts=started.facts | self._phases.facts)
        return [first, *(event for event in before if isinstance(event, Unobserved))]

    def _rest(self, ended: RunEnded) -> list[AnyEvent]:
        """What no call claimed: numbers that came after the last one, and what a trainer did that its controller did not ask for."""
        rest = self._phases.rest()
        if ended.status == "raised":  # within a call that did not return
            rest = [event for event in rest if isinstance(event, Measured | Unobserved)]
        return list(map(self._placed, rest))

    def _call(self, call: Phase) -> list[AnyEvent]:
        begun = self._begin()
        events = [] if call.name in self._unrecorded else self._phases.take(call.name, call.number)
        if events is None:
            begun += self._missing(call)
            events = []
        if call.purpose == "evaluation":
            # A sync for the sake of an evaluation is no part of the plan, but its label may come back with later samples.
            for event in events:
                self._placed(event)
            return begun
        if self._held is not None or call.name == "reference":
            self._reference = self._reference or call.name == "reference"
        if call.name in _TRAINING or self._held is None:
            return [*begun, *self._release(), *map(self._placed, events)]
        self._after_held += events
        return begun

    def _missing(self, call: Phase) -> list[AnyEvent]:
        """What a judge hears of a call without a record: from the first one on, the trainer's order of events is not known."""
        if self.lost:
            return []
        if len(self.missed) < REMEMBERED:
            self.missed.append(call)
        if len(self.missed) > 1:
            return []
        why = f"trainer {self.rank} has no record of call {call.number} of {call.name}"
        return [Unobserved(at=call.at, what="order", why=why)]

    def _release(self) -> list[AnyEvent]:
        """The rollout that was held back, with what came before its first update."""
        held, self._held = self._held, None
        if held is None:
            return []
        after, self._after_held = self._after_held, []
        rollout = self._rollout_event(held, after)
        self._reference = None
        return [rollout, *map(self._placed, after)]

    def _rollout_event(self, event: Generated, after: Iterable[AnyEvent] = ()) -> Rollout:
        versions = [self._labels.get(label) for label, _ in event.labels]
        known = [version for version in versions if version is not None]
        # Where calls or syncs may be missing, versions are counted from another place on each side.
        whole = bool(known) and len(known) == len(versions) and not self.lost
        oldest = min(known) if whole else None
        if event.purpose == "training":
            self._rollout = event.index
            _remember(self._sampled, event.index, oldest)
        return Rollout(
            at=event.at,
            index=event.index,
            samples=event.samples,
            due=event.due,
            own_samples=next((e.samples for e in after if isinstance(e, Refresh)), None),
            policy_version=self._version,
            sampler_version=oldest,
            purpose=event.purpose,
            reference=self._reference,
        )

    def _placed(self, event: AnyEvent) -> AnyEvent:
        """A trainer's event with the rollout that it belongs to, and versions counted from the start of training."""
        if isinstance(event, Update):
            version = event.version + self._base
            if event.role == "policy":
                self._version = version
                return msgspec.structs.replace(event, index=event.index + self._base, version=version)
            return event
        if isinstance(event, WeightSync):
            version = event.policy_version + self._base
            if event.label is not None:
                _remember(self._labels, event.label, version)
            return msgspec.structs.replace(event, policy_version=version)
        if isinstance(event, Refresh):
            _remember(self._rollout_of_refresh, event.rollout, self._rollout)
            return msgspec.structs.replace(
                event, rollout=self._rollout, policy_version=self._counted(event.policy_version)
            )
        if isinstance(event, MicroBatch):
            return self._microbatch(event)
        if isinstance(event, Unobserved):
            self.lost = self.lost or event.what == "order"
            return event
        if isinstance(event, Measured):
            return msgspec.structs.replace(
                event,
                rollouts=tuple(map(self._values, event.rollouts)),
                updates=tuple(map(self._update_values, event.updates)),
            )
        return event

    def _counted(self, version: int | None) -> int | None:
        return None if version is None else version + self._base

    def _update_values(self, values: UpdateValues) -> UpdateValues:
        if values.role == "critic" or not self._base:
            return values
        return msgspec.structs.replace(values, index=values.index + self._base)

    def _microbatch(self, event: MicroBatch) -> MicroBatch:
        parts = event.trained and tuple(
            SampleRows(self._rollout_of_refresh.get(part.rollout, part.rollout), part.rows) for part in event.trained
        )
        rollouts = [self._rollout] if parts is None else [part.rollout for part in parts]
        sampled = [self._sampled.get(rollout) for rollout in rollouts]
        known = [version for version in sampled if version is not None]
        return msgspec.structs.replace(
            event,
            policy_version=event.policy_version + self._base,
            old_version=self._counted(event.old_version),
            trained=parts,
            sampled_version=min(known) if known and len(known) == len(sampled) else None,
        )

    def _values(self, values: RolloutValues) -> RolloutValues:
        """Numbers of a rollout, which a trainer counts by its refreshes."""
        return msgspec.structs.replace(values, index=self._rollout_of_refresh.get(values.index, self._rollout))


def _remember(known: OrderedDict[int, int | None] | OrderedDict[int, int], key: int, value: int | None) -> None:
    known[key] = value  # type: ignore[assignment]
    if len(known) > REMEMBERED:
        known.popitem(last=False)
