"""Events as actions: what two runs of the same plan both do, whatever their seeds, clocks and data.

An action has no versions or indices, because they depend on where a run began; it has lags and ages instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.judge.conformance import observed_lag
from rlstep_hooks.planning.finding import Where
from rlstep_hooks.record.events import (
    AnyEvent,
    ConfigChanged,
    EpochEnd,
    Measured,
    MicroBatch,
    Refresh,
    Rollout,
    RunEnded,
    RunStarted,
    Unobserved,
    Update,
    WeightSync,
    name_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rlstep_hooks.planning.schedule import Schedule

WAITING_VALUES = 65_536
"""Largest number of micro-batches whose numbers may wait for the other run's; more than any rollout has."""


class Action(msgspec.Struct, frozen=True):
    """One thing that a run did."""

    kind: str
    """What the run did, in words: "a rollout", "a micro-batch"."""
    where: Where
    facts: dict[str, Any] = {}
    """The values that a plan fixes. None means not observed, and differs from nothing."""
    learning_rate: float | None = None
    """Learning rate of an update."""

    def is_like(self, other: Action) -> bool:
        """Whether two runs did the same, as far as both were observed."""
        if self.kind != other.kind:
            return False
        pairs = ((value, other.facts.get(name)) for name, value in self.facts.items())
        return all(mine == theirs for mine, theirs in pairs if mine is not None and theirs is not None)


class Blindness(msgspec.Struct, frozen=True):
    """What cannot be compared, because one run did not observe it or the data decide it."""

    refreshes: bool = False
    microbatches: frozenset[str] = frozenset()
    """Roles whose micro-batches are cut by token counts and so depend on the data."""


def cut_by_tokens(schedule: Schedule | None) -> frozenset[str]:
    """The roles whose micro-batches depend on the data."""
    roles = {"policy": schedule, "critic": schedule.critic if schedule is not None else None}
    return frozenset(role for role, plan in roles.items() if plan is not None and plan.samples_per_microbatch is None)


class ActionStream:
    """The actions of one trainer, in order. Keeps only numbers that wait to be compared."""

    def __init__(self, events: Iterable[AnyEvent], blindness: Blindness) -> None:
        self._events = events
        self._blindness = blindness
        self._rollouts = self._updates = self._microbatches = self._epoch = 0
        self._version: int | None = None
        self.started: RunStarted | None = None
        """The run's first event, once seen."""
        self.cut = False
        """Whether the record was read to its end and lacks the run's end."""
        self.lost = ""
        """Why the order of later events is unknown; empty if it is known."""
        self.log_ratios: dict[int, tuple[Where, float]] = {}
        """Micro-batch -> its place and max |log ratio|: numbers that arrived and were not taken yet."""
        self.weights: dict[int, int] = {}
        """Version -> label of the policy's weights, where labels are the weights themselves."""
        self._places: dict[int, Where] = {}

    def __iter__(self) -> Iterator[Action]:
        for event in self._events:
            if isinstance(event, RunStarted):
                self._begin(event)
            elif isinstance(event, Unobserved) and event.what == "order":
                self.lost = event.why
                return
            elif isinstance(event, Measured):
                self._keep_values(event)
            else:
                action = self._action(event)
                if action is not None:
                    yield action
            if isinstance(event, RunEnded):
                return
        self.cut = True

    def _begin(self, event: RunStarted) -> None:
        self.started = event
        self._updates = event.start_updates
        stated = event.facts.get("position", {})
        self._version = stated.get("version", event.start_updates)
        if "weights" in event.facts and self._version is not None:
            _keep(self.weights, self._version, event.facts["weights"])

    def _keep_values(self, event: Measured) -> None:
        for values in event.microbatches:
            where = self._places.pop(values.index, None)
            if where is not None and values.max_abs_log_ratio is not None:
                _keep(self.log_ratios, values.index, (where, values.max_abs_log_ratio))

    def _action(self, event: AnyEvent) -> Action | None:
        if isinstance(event, Rollout):
            return self._rollout(event) if event.purpose == "training" else None
        if isinstance(event, Refresh):
            return None if self._blindness.refreshes else self._refresh(event)
        if isinstance(event, MicroBatch):
            return self._microbatch(event)
        if isinstance(event, Update):
            return self._update(event)
        if isinstance(event, WeightSync):
            if event.label is not None and self.weights and event.policy_version not in self.weights:
                _keep(self.weights, event.policy_version, event.label)
            return Action(name_of(event), self._where(), {"updates behind": self._since(event.policy_version)})
        if isinstance(event, EpochEnd):
            self._epoch = event.epoch
            return Action(name_of(event), self._where())
        if isinstance(event, ConfigChanged):
            return Action(f"{event.name} changed", self._where(), {"from": event.before, "to": event.after})
        if isinstance(event, RunEnded):
            return Action(name_of(event), self._where(), {"status": event.status, "stopped": event.stopped})
        return None

    def _rollout(self, event: Rollout) -> Action:
        self._version = event.policy_version
        age = self._since(event.sampler_version)
        action = Action(
            name_of(event),
            self._where(rollout=self._rollouts),
            {"samples": event.samples, "age of the weights": age, "reference log-probs": event.reference},
        )
        self._rollouts += 1
        return action

    def _refresh(self, event: Refresh) -> Action:
        facts = {"samples": event.samples, "updates behind": self._since(event.policy_version)}
        return Action(name_of(event), self._where(), facts)

    def _microbatch(self, event: MicroBatch) -> Action | None:
        where = self._where()
        if event.role == "policy":
            _keep(self._places, event.index, where)
            self._microbatches += 1
            self._version = event.policy_version
        if event.role in self._blindness.microbatches:
            return None
        facts: dict[str, Any] = {"samples": event.samples}
        if event.role == "policy":
            facts["lag"] = observed_lag(event)
            facts["age"] = self._since(event.sampled_version)
            facts["old log-probs"] = None if event.old_source == "unknown" else event.old_source
        return Action(name_of(event), where, facts)

    def _update(self, event: Update) -> Action:
        facts: dict[str, Any] = {"applied": event.applied, "by the training loop": event.by_loop}
        if event.role not in self._blindness.microbatches:
            facts["micro-batches"] = event.microbatches
        action = Action(name_of(event), self._where(), facts, event.learning_rate)
        if event.role == "policy":
            self._updates += 1
            self._version = event.version
        return action

    def _since(self, version: int | None) -> int | None:
        """Updates between a version and the current weights."""
        return None if version is None or self._version is None else self._version - version

    def _where(self, rollout: int | None = None) -> Where:
        return Where(
            rollout=max(self._rollouts - 1, 0) if rollout is None else rollout,
            update=self._updates,
            microbatch=self._microbatches,
            epoch=self._epoch,
        )


def _keep(waiting: dict[int, Any], index: int, value: Any) -> None:
    waiting[index] = value
    if len(waiting) > WAITING_VALUES:
        del waiting[next(iter(waiting))]
