"""Joins one trainer's record with its controller's: the events of one process as a judge reads them.

Both records count the calls of each name, so calls are matched by number; no clocks are compared. The controller does not know
policy versions and a trainer does not know rollouts; here each is completed from the other.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, TypeVar

import msgspec

from rlstep_hooks.judge.controlled.carried import arrived
from rlstep_hooks.judge.controlled.parts import put_together
from rlstep_hooks.record.events import (
    UNSENT,
    AnyEvent,
    Attached,
    Carried,
    FactsRead,
    Generated,
    GradientParts,
    Inspected,
    Measured,
    MicroBatch,
    Phase,
    PhaseEnded,
    Received,
    Refresh,
    ReplicaSums,
    Rollout,
    RolloutValues,
    RunEnded,
    RunStarted,
    SampleRows,
    Unobserved,
    Update,
    UpdateValues,
    WeightsSent,
    WeightSync,
)
from rlstep_hooks.record.tail import unknown_from_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rlstep_hooks.record.events import PhaseName

_Remembered = TypeVar("_Remembered")

REMEMBERED = 256
"""Labels and rollouts that are kept for later events to refer to; far more than any run lags behind."""

HANDED = 8
"""Events of which it is remembered what the controller handed over: two for each rollout with a critic."""

_TRAINING: tuple[PhaseName, ...] = ("critic_updates", "policy_updates", "sync")


class TrainerPhases:
    """A trainer's records, cut into the calls of its controller. Reads only as far as needed, so that few events wait here.

    Policy and critic of one rank may be two processes with a record each; the policy's record comes first.

    Args:
        reads: One function per record; it gives the events that were added since it was last called. Its iterator may be left early;
                the next call continues from there.
    """

    def __init__(self, *reads: Callable[[], Iterable[AnyEvent]]) -> None:
        self._reads = reads
        self._waiting: dict[tuple[PhaseName, int], list[AnyEvent]] = {}
        self._between: list[AnyEvent] = []
        self._current = [self._between] * len(reads)
        self._records_of: dict[PhaseName, set[int]] = {}
        """The records that have calls of a name."""
        self._ended: set[tuple[PhaseName, int]] = set()
        """Calls that were read to their end and wait here."""
        self._tells_ends = False
        self.cut: list[tuple[PhaseName, int]] = []
        """Calls without an end in a fully read record that marks the ends of calls."""
        self.attached: Attached | None = None
        self.facts: dict[str, object] = {}
        self.unknown = ""
        """Why the order of its events is not known from some line on, so that a call may be there and not be seen; empty if it is."""

    def arrived(self, name: PhaseName, number: int) -> bool:
        """Whether a call has been read to its end by now."""
        call = (name, number)
        growing = list(self._records_of.get(name) or range(len(self._reads)))
        while growing and not self._is_whole(call):
            growing = [record for record in growing if self._advance(record)]
        return self._is_whole(call)

    def take(self, name: PhaseName, number: int) -> list[AnyEvent] | None:
        """The events of a returned call, preceded by those outside calls before it; None if the trainer has no record of the call."""
        call = (name, number)
        self.arrived(name, number)
        events = self._waiting.pop(call, None)
        self._ended.discard(call)
        if events is None:
            return None
        self._current = [self._between if current is events else current for current in self._current]
        return [*self._left(), *events]

    def between(self) -> list[AnyEvent]:
        """Events outside calls so far: before the first call, or between a call's return and the next call."""
        for record, current in enumerate(self._current):
            if current is self._between:
                self._advance(record)
        return self._left()

    def rest(self) -> list[AnyEvent]:
        """Remaining events, in order: numbers that came after the last call, and calls that the controller did not make."""
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
        """Whether a call was read to its end: its record says so, or begins the next call."""
        events = self._waiting.get(call)
        return events is not None and (call in self._ended or not any(current is events for current in self._current))

    def _advance(self, record: int) -> bool:
        """Read a record up to the beginning or end of its next call; False if that is not there yet."""
        for event in self._reads[record]():
            if isinstance(event, Attached):
                self.attached = event if record == 0 else self.attached
            elif isinstance(event, FactsRead):
                # Those from before the run's first event are told with it, later ones where they came.
                self.facts |= event.facts
                self._current[record].append(event)
            elif isinstance(event, Phase):
                self._current[record] = self._waiting.setdefault((event.name, event.number), [])
                self._records_of.setdefault(event.name, set()).add(record)
                return True
            elif isinstance(event, PhaseEnded):
                self._ended.add((event.name, event.number))
                self._tells_ends = True
                return True
            else:
                if isinstance(event, Unobserved) and event.what == "order":
                    self.unknown = self.unknown or event.why
                self._current[record].append(event)
        return False


class TrainerStream:
    """One trainer's events as a judge reads them, made from the controller's events as they come."""

    def __init__(self, rank: int, phases: TrainerPhases) -> None:
        self.rank = rank
        self.missed: list[Phase] = []
        """The first few calls of the controller that this trainer has no record of."""
        self.lost = False
        """Whether one side's order of events is unknown; a call without a record is then not a finding."""
        self._phases = phases
        self._started: RunStarted | None = None
        self._held: Generated | None = None
        self._reference: bool | None = None
        """Whether the rollout that is held back has reference log-probs; None until something has followed it."""
        self._unrecorded: list[PhaseName] = []
        """Calls to processes that keep no record."""
        self._inspected = Inspected()
        """What was observed of the samples of the rollout that is held back."""
        self._after_held: list[AnyEvent] = []
        self._received: int | None = None
        """Samples of the held-back rollout that this trainer was given; None if they are those that it refreshed."""
        self._base = 0
        """Updates before this run; a trainer does not count them."""
        self._version = 0
        self._handed: deque[Carried] = deque(maxlen=HANDED)
        """What the controller handed over of the latest rollouts."""
        self._labels: OrderedDict[int, int] = OrderedDict()
        self._labels_are_weights = False
        self._labelled = True
        """Whether this trainer knows the label of the latest sync; a trainer that sends no tensors does not."""
        self._rollout = -1
        self._sampled: OrderedDict[int, int | None] = OrderedDict()
        self._rollout_of_refresh: OrderedDict[int, int] = OrderedDict()
        self._rows: OrderedDict[int, int] = OrderedDict()
        """Refresh of a rollout that is trained in parts -> samples of the parts before its own."""
        self._parts = 1
        """Parts in which the latest rollout was trained."""
        self._of_parts: dict[int, tuple[int, RolloutValues]] = {}
        """Rollouts of which the numbers of some parts came: of how many, and these together."""
        self._refreshed = 0
        """How many samples of the current rollout's parts have got their old log-probs."""
        self._processes = 1

    def feed(self, event: AnyEvent) -> list[AnyEvent]:
        """Take one event of the controller.

        Returns:
            The events that are now complete. A rollout is held back until it is known what came with it.
        """
        if isinstance(event, RunStarted):
            self._started = event
            self._version = self._base = event.start_updates
            self._processes = event.world_size
            self._unrecorded = event.facts.get("unrecorded", [])
            self._labels_are_weights = bool(event.facts.get("labels_are_weights"))
            label = event.facts.get("first_label")
            if label is not None:  # the engine loads its first weights without a sync
                _remember(self._labels, label, self._base)
            for label, version in event.facts.get(
                "labels_before", ()
            ):  # a resumed run trains samples of weights before it
                _remember(self._labels, label, version)
            return []
        if isinstance(event, Phase):
            return self._call(event)
        if isinstance(event, Inspected):
            self._inspected = event
            return []
        if isinstance(event, Carried) and event.parts:
            self._handed.append(event)
            return []
        if isinstance(event, Unobserved):
            self.lost = self.lost or event.what == "order"
            return [*self._begin(), event]
        if isinstance(event, RunEnded):
            if event.status == "raised":  # the call for the reference may not have come or returned
                self._reference = self._reference or None
            return [*self._begin(), *self._release(), *self._rest(event), event]
        if isinstance(event, Generated) and event.purpose == "training":
            between = self._keep_received(self._phases.between())
            complete = [*self._begin(), *self._release(), *map(self._placed, between)]
            self._held = event
            return complete
        if isinstance(event, Generated):
            event = self._rollout_event(event)
        if self._held is not None:
            self._after_held.append(event)
            return self._begin()
        return [*self._begin(), event]

    def lacks(self, call: Phase) -> bool:
        """Whether the trainer lacks, so far, the end of a returned call that it should have recorded."""
        return call.name not in self._unrecorded and not self._phases.arrived(call.name, call.number)

    def _begin(self) -> list[AnyEvent]:
        """The run's first event, once: it includes the facts that the trainer read from its model."""
        started, self._started = self._started, None
        if started is None:
            return []
        before = list(map(self._placed, self._phases.between()))
        first = msgspec.structs.replace(started, rank=self.rank, facts=started.facts | self._phases.facts)
        return [first, *(event for event in before if isinstance(event, Unobserved))]

    def _rest(self, ended: RunEnded) -> list[AnyEvent]:
        """Remaining events: numbers that came after the last call, and what a trainer did without a call of its controller."""
        rest = self._keep_received(self._phases.rest())
        if ended.status == "raised":  # it happened within a call that did not return
            rest = [event for event in rest if isinstance(event, Measured | GradientParts | ReplicaSums | Unobserved)]
        placed = list(map(self._placed, rest))
        left = tuple(values for _, values in self._of_parts.values())
        return [*placed, Measured(at=ended.at, rollouts=left)] if left else placed

    def _call(self, call: Phase) -> list[AnyEvent]:
        begun = self._begin()
        events = [] if call.name in self._unrecorded else self._phases.take(call.name, call.number)
        if events is None:
            begun += self._missing(call)
            events = []
        events = self._keep_received(events)
        if call.purpose == "evaluation":
            # A sync for an evaluation is not part of the plan, but later samples may carry its label, and trainers write what came of
            # the updates before it.
            placed = list(map(self._placed, events))
            return [*begun, *(event for event in placed if isinstance(event, GradientParts | ReplicaSums))]
        if self._held is not None or call.name == "reference":
            self._reference = self._reference or call.name == "reference"
        if call.name in _TRAINING or self._held is None:
            return [*begun, *self._release(), *map(self._placed, events)]
        self._after_held += events
        return begun

    def _keep_received(self, events: list[AnyEvent]) -> list[AnyEvent]:
        """Remove the event with the number of samples given to the trainer; it belongs to the rollout."""
        for event in events:
            if isinstance(event, Received):
                self._received = (self._received or 0) + event.samples
        return [event for event in events if not isinstance(event, Received)]

    def _missing(self, call: Phase) -> list[AnyEvent]:
        """The event for a call without a record: from the first one on, the trainer's order of events is unknown."""
        if self.lost:
            return []
        if self._phases.unknown:
            self.lost = True
            return [msgspec.structs.replace(each, at=call.at) for each in unknown_from_here(self._phases.unknown)]
        if len(self.missed) < REMEMBERED:
            self.missed.append(call)
        if len(self.missed) > 1:
            return []
        why = f"trainer {self.rank} has no record of call {call.number} of {call.name}"
        return [Unobserved(at=call.at, what="order", why=why)]

    def _release(self) -> list[AnyEvent]:
        """The rollout that was held back, and what came before its first update."""
        held, self._held = self._held, None
        if held is None:
            return []
        after, self._after_held = self._after_held, []
        rollout = self._rollout_event(held, after)
        self._reference = self._received = None
        self._inspected = Inspected()
        return [rollout, *map(self._placed, after)]

    def _rollout_event(self, event: Generated, after: Iterable[AnyEvent] = ()) -> Rollout:
        # The label is a checksum of the weights, so these weights were never sent.
        unsent = UNSENT if self._labels_are_weights and self._labelled and not self.missed else None
        versions = [self._labels.get(label, unsent) for label, _ in event.labels]
        known = [version for version in versions if version is not None]
        # If calls or syncs may be missing, trainer and controller count versions from different places.
        whole = bool(known) and len(known) == len(versions) and not self.lost
        oldest = min(known) if whole else None
        if event.purpose == "training":
            self._rollout = event.index
            self._parts, self._refreshed = max(len(event.parts), 1), 0
            _remember(self._sampled, event.index, None if oldest is None or oldest < 0 else oldest)
        return Rollout(
            at=event.at,
            index=event.index,
            samples=event.samples,
            due=event.due,
            all_drawn=event.all_drawn,
            repeated=event.repeated,
            foreign=event.foreign,
            own_samples=self._own_samples(event, after),
            policy_version=self._version,
            sampler_version=oldest,
            purpose=event.purpose,
            reference=self._reference,
            groups_intact=self._inspected.groups_intact,
            rewards_intact=self._inspected.rewards_intact,
            repeats=self._inspected.repeats,
            copied=self._inspected.copied,
            signal=self._inspected.signal,
            reference_intact=self._inspected.reference_intact,
            reference_gap=self._inspected.reference_gap,
            reference_clean_gap=self._inspected.reference_clean_gap,
            reference_clean_max=self._inspected.reference_clean_max,
            reference_clean_like=self._inspected.reference_clean_like,
            reward_model_intact=self._inspected.reward_model_intact,
            reward_clean_gap=self._inspected.reward_clean_gap,
            reward_clean_like=self._inspected.reward_clean_like,
            filtered=self._inspected.filtered,
            sampling=event.sampling,
            queue=event.queue,
        )

    def _own_samples(self, event: Generated, after: Iterable[AnyEvent]) -> int | None:
        """Samples of a rollout that this trainer trains."""
        if event.parts:
            return sum(event.parts) // self._processes
        refreshed = next((e.samples for e in after if isinstance(e, Refresh)), None)
        return refreshed if self._received is None else self._received

    def _placed(self, event: AnyEvent) -> AnyEvent:
        """A trainer's event with its rollout, and with versions counted from the start of training."""
        if isinstance(event, Update):
            version = event.version + self._base
            if event.role == "policy":
                self._version = version
                return msgspec.structs.replace(event, index=event.index + self._base, version=version)
            return event
        if isinstance(event, GradientParts | ReplicaSums):
            counted = self._base if event.role == "policy" else 0
            return msgspec.structs.replace(event, update=event.update + counted)
        if isinstance(event, WeightsSent):
            return msgspec.structs.replace(event, policy_version=event.policy_version + self._base)
        if isinstance(event, WeightSync):
            version = event.policy_version + self._base
            self._labelled = event.label is not None
            if event.label is not None:
                _remember(self._labels, event.label, version)
            return msgspec.structs.replace(event, policy_version=version)
        if isinstance(event, Refresh):
            _remember(self._rollout_of_refresh, event.rollout, self._rollout)
            if self._parts > 1:
                _remember(self._rows, event.rollout, self._refreshed)
                self._refreshed += event.samples
            return msgspec.structs.replace(
                event, rollout=self._rollout, policy_version=self._counted(event.policy_version)
            )
        if isinstance(event, MicroBatch):
            return self._microbatch(event)
        if isinstance(event, Carried) and event.parts:
            # Trainers count the rollouts whose samples came by their refreshes.
            return arrived(event, self._handed, self._rollout_of_refresh.get(event.rollout))
        if isinstance(event, Unobserved):
            self.lost = self.lost or event.what == "order"
            return event
        if isinstance(event, Measured):
            return msgspec.structs.replace(
                event,
                rollouts=tuple(self._of_whole_rollouts(event.rollouts)),
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
        parts = event.trained and tuple(map(self._sample_rows, event.trained))
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

    def _sample_rows(self, part: SampleRows) -> SampleRows:
        """Rows of a refresh as rows of its rollout."""
        before = self._rows.get(part.rollout, 0)
        rows = tuple(before + row for row in part.rows) if before else part.rows
        return SampleRows(self._rollout_of_refresh.get(part.rollout, part.rollout), rows)

    def _of_whole_rollouts(self, found: Iterable[RolloutValues]) -> Iterator[RolloutValues]:
        """Numbers of rollouts. Those of the parts of one rollout are put together, and wait for each other."""
        for part in map(self._values, found):
            if self._parts == 1:
                yield part
                continue
            count, values = self._of_parts.get(part.index, (0, part))
            self._of_parts[part.index] = count + 1, put_together(values, part) if count else part
        for index, (count, values) in list(self._of_parts.items()):
            if count >= self._parts or index < self._rollout:
                del self._of_parts[index]
                yield values

    def _values(self, values: RolloutValues) -> RolloutValues:
        """A rollout's numbers under its rollout index; a trainer numbers them by refresh."""
        return msgspec.structs.replace(values, index=self._rollout_of_refresh.get(values.index, self._rollout))


def _remember(known: OrderedDict[int, _Remembered], key: int, value: _Remembered) -> None:
    known[key] = value
    if len(known) > REMEMBERED:
        known.popitem(last=False)
