"""One trainer's record and its controller's, put together: the events of one process as a judge reads them.

Both records count the calls of each name, so they are matched by number; no clock is compared. The controller does not know
policy versions and a trainer does not know rollouts: each gets here what only the other one knows.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.events import (
    AnyEvent,
    Attached,
    FactsRead,
    Generated,
    Measured,
    MicroBatch,
    Phase,
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

    from rlstep_hooks.events import PhaseName

REMEMBERED = 256
"""Labels and rollouts that are kept for events that refer to them; far more than any run is behind."""

_TRAINING: tuple[PhaseName, ...] = ("critic_updates", "policy_updates", "sync")


class TrainerPhases:
    """A trainer's records, cut into the calls of its controller.

    Policy and critic of one rank may be two processes with a record each; the first is the policy's.

    Args:
        reads: For each record, what gives its new events.
    """

    def __init__(self, *reads: Callable[[], Iterable[AnyEvent]]) -> None:
        self._reads = reads
        self._waiting: dict[tuple[PhaseName, int], list[AnyEvent]] = {}
        self.before: list[AnyEvent] = []
        """Events before the first call."""
        self._current = [self.before] * len(reads)
        self.attached: Attached | None = None
        self.facts: dict[str, object] = {}

    def take(self, name: PhaseName, number: int) -> list[AnyEvent] | None:
        """What happened within a call that has returned; None if the trainer has no record of it."""
        if (name, number) not in self._waiting:
            self.catch_up()
        return self._waiting.pop((name, number), None)

    def rest(self) -> list[AnyEvent]:
        """What no call claimed, in order: numbers that came after the last call, and calls that the controller did not make."""
        self.catch_up()
        events = [event for phase in self._waiting.values() for event in phase]
        self._waiting.clear()
        return events

    def catch_up(self) -> None:
        """Read what is new."""
        for record, read in enumerate(self._reads):
            for event in read():
                if isinstance(event, Attached):
                    self.attached = event if record == 0 else self.attached
                elif isinstance(event, FactsRead):
                    self.facts |= event.facts
                elif isinstance(event, Phase):
                    self._current[record] = self._waiting.setdefault((event.name, event.number), [])
                else:
                    self._current[record].append(event)


class TrainerStream:
    """The events of one trainer's run as a judge reads them, from the controller's events as they come."""

    def __init__(self, rank: int, phases: TrainerPhases) -> None:
        self.rank = rank
        self.missed: list[Phase] = []
        """Calls that the controller made and this trainer has no record of; a few of them, the first."""
        self._phases = phases
        self._started: RunStarted | None = None
        self._held: Generated | None = None
        self._reference = False
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
            label = event.facts.get("first_label")
            if label is not None:  # the engine loads the weights that training starts from, without a push
                _remember(self._labels, label, self._base)
            return []
        if isinstance(event, Generated) and event.purpose == "training":
            held = self._release()
            self._held = event
            return [*self._begin(), *held]
        if isinstance(event, Phase):
            return self._call(event)
        if isinstance(event, RunEnded):
            # Numbers that a trainer had not written when its last call returned.
            held = [*self._begin(), *self._release()]
            rest = [e for e in self._phases.rest() if isinstance(e, Measured | Unobserved)]
            return [*held, *rest, event]
        if isinstance(event, Generated):
            return [*self._begin(), *self._release(), self._rollout_event(event)]
        return [*self._begin(), *self._release(), event]

    def _begin(self) -> list[AnyEvent]:
        """The run's first event, once: what the trainer read from its model belongs to it."""
        started, self._started = self._started, None
        if started is None:
            return []
        self._phases.catch_up()
        first = msgspec.structs.replace(started, rank=self.rank, facts=started.facts | self._phases.facts)
        return [first, *(event for event in self._phases.before if isinstance(event, Unobserved))]

    def _call(self, call: Phase) -> list[AnyEvent]:
        events = self._phases.take(call.name, call.number)
        if events is None:
            if len(self.missed) < REMEMBERED:
                self.missed.append(call)
            events = []
        if call.purpose == "evaluation":
            # A push for the sake of an evaluation is no part of the plan, but its label may come back with later samples.
            for event in events:
                self._placed(event)
            return self._begin()
        if call.name == "reference":
            self._reference = True
        begun = self._begin()
        if call.name in _TRAINING:
            return [*begun, *self._release(), *(self._placed(e) for e in events)]
        if self._held is None:
            return [*begun, *(self._placed(e) for e in events)]
        self._after_held += events
        return begun

    def _release(self) -> list[AnyEvent]:
        """The rollout that was held back, with what came before its first update."""
        held, self._held = self._held, None
        if held is None:
            return []
        after, self._after_held = self._after_held, []
        rollout = self._rollout_event(held, after)
        self._reference = False
        return [rollout, *(self._placed(event) for event in after)]

    def _rollout_event(self, event: Generated, after: Iterable[AnyEvent] = ()) -> Rollout:
        versions = [self._labels.get(label) for label, _ in event.labels]
        known = [version for version in versions if version is not None]
        oldest = min(known) if known and len(known) == len(versions) else None
        if event.purpose == "training":
            self._rollout = event.index
            _remember(self._sampled, event.index, oldest)
        return Rollout(
            at=event.at,
            index=event.index,
            samples=event.samples,
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
        event = msgspec.structs.replace(
            event,
            policy_version=event.policy_version + self._base,
            old_version=self._counted(event.old_version),
        )
        if event.trained is None:
            return msgspec.structs.replace(event, sampled_version=self._sampled.get(self._rollout))
        parts = tuple(
            SampleRows(self._rollout_of_refresh.get(part.rollout, part.rollout), part.rows) for part in event.trained
        )
        sampled = [self._sampled.get(part.rollout) for part in parts]
        known = [version for version in sampled if version is not None]
        oldest = min(known) if len(known) == len(sampled) and known else None
        return msgspec.structs.replace(event, trained=parts, sampled_version=oldest)

    def _values(self, values: RolloutValues) -> RolloutValues:
        """Numbers of a rollout, which a trainer counts by its refreshes."""
        return msgspec.structs.replace(values, index=self._rollout_of_refresh.get(values.index, self._rollout))


def _remember(known: OrderedDict[int, int | None] | OrderedDict[int, int], key: int, value: int | None) -> None:
    known[key] = value  # type: ignore[assignment]
    if len(known) > REMEMBERED:
        known.popitem(last=False)
