"""What a judge must find, worked out slowly from the whole list of events: nothing is cached, nothing is kept between two questions.

Written from the docstrings of rules and events, for runs in float32. Each question walks through the list again.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from rlstep_hooks.judge.report import Counts
from rlstep_hooks.record.events import (
    AnyEvent,
    EpochEnd,
    Evaluated,
    Measured,
    MicroBatch,
    Refresh,
    Rollout,
    RunEnded,
    Unobserved,
    Update,
    WeightSync,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.planning.schedule import Schedule

Events = list[AnyEvent]


# The plan as a list, and where a run parts from it.


class Planned(NamedTuple):
    """One event of the plan."""

    kind: tuple[type, str]
    """Its type, and the role that it belongs to."""
    numbers: dict[str, Any]
    """What is fixed of it; None for what is free."""


class Parting(NamedTuple):
    """One number that is not as planned, or (`aspect` "kind") the event itself."""

    position: int
    aspect: str


def kind_of(event: AnyEvent) -> tuple[type, str]:
    return type(event), getattr(event, "role", "policy")


def is_ordered(schedule: Schedule, event: AnyEvent) -> bool:
    """Whether the plan gives this event a place."""
    if isinstance(event, MicroBatch | Update):
        return event.role == "policy" or schedule.critic is not None
    if isinstance(event, Rollout):
        return event.purpose == "training"
    if isinstance(event, WeightSync):
        return schedule.syncs != "unseen"
    if isinstance(event, EpochEnd):
        known = schedule.rows_bound == "exact" and schedule.rollouts_per_epoch and schedule.epoch_ends_between_rollouts
        return schedule.loop == "loader" or bool(known)
    return isinstance(event, Refresh | RunEnded)


def lag_of(event: MicroBatch) -> int | None:
    """Updates since the refresh; since the rollout where the loss has no refresh; None where that was not seen."""
    if event.role == "critic":
        return None
    if event.old_version is not None:
        return event.policy_version - event.old_version
    if event.old_source == "recompute" or event.sampled_version is None:
        return None
    return event.policy_version - event.sampled_version


def numbers_of(event: AnyEvent) -> dict[str, Any]:
    """The numbers of an event that a plan can fix."""
    if isinstance(event, Rollout):
        return {"samples": event.samples, "reference": event.reference}
    if isinstance(event, Refresh | WeightSync):
        return {"version": event.policy_version}
    if isinstance(event, MicroBatch):
        return {"samples": event.samples, "lag": lag_of(event)}
    return {"microbatches": event.microbatches} if isinstance(event, Update) else {}


def planned_by_loader(schedule: Schedule, events: Events) -> list[Planned]:
    """The plan of a run that its loader drives, micro-batch after micro-batch, for the updates that the run skipped."""
    applied = [e.applied for e in events if isinstance(e, Update) and e.role == "policy"]
    plan: list[Planned] = []

    def add(kind: type, **numbers: Any) -> None:
        plan.append(Planned((kind, "policy"), numbers))

    def version(updates: int) -> int:
        return sum(applied[:updates]) + max(updates - len(applied), 0)

    sampled_at: list[int] = []
    updates = window = epoch = in_epoch = 0
    for microbatch in itertools.count():
        if updates == schedule.updates:
            break
        cycle, place = divmod(microbatch, schedule.microbatches_per_cycle)
        if place < schedule.rollouts_per_cycle:
            sampled_at.append(updates)
            samples = schedule.samples_per_rollout // schedule.world_size
            add(Rollout, samples=samples, reference=schedule.reference_source == "at_rollout")
            if schedule.old_logprob_source in ("at_rollout", "recompute"):
                add(Refresh, version=version(updates))
        slot = place % schedule.slots_per_cycle
        rollout = slot * schedule.rollouts_per_cycle // schedule.slots_per_cycle
        sampled = sampled_at[cycle * schedule.rollouts_per_cycle + rollout]
        samples = (schedule.samples_per_microbatch or 0) // schedule.world_size
        add(MicroBatch, samples=samples, lag=version(updates) - version(sampled))
        window += 1
        in_epoch += 1
        last = in_epoch == schedule.microbatches_per_epoch
        if in_epoch % schedule.window == 0 or (last and schedule.partial_window == "flush"):
            add(Update, microbatches=window)
            updates, window = updates + 1, 0
        if last or updates == schedule.updates:
            epoch, in_epoch = epoch + 1, 0
            add(EpochEnd)
    add(RunEnded)
    return plan


def planned_like(schedule: Schedule, healthy: Events) -> list[Planned]:
    """The plan of a run in phases of which one that went as planned is known."""
    plan = []
    for at, event in enumerate(healthy):
        if not is_ordered(schedule, event):
            continue
        numbers = numbers_of(event)
        if isinstance(event, MicroBatch):
            since = max(made for made, _ in trainings(healthy[:at]))
            lag = sum(update.applied for _, update in policy(healthy[since:at], Update))
            # A critic has no ratio, and how old an engine's log-probs are in asynchronous training no plan knows.
            counted = event.role == "policy" and (schedule.old_logprob_source != "engine" or schedule.max_age == 0)
            numbers["lag"] = lag if counted else None
        plan.append(Planned(kind_of(event), numbers))
    return plan


def partings(schedule: Schedule, plan: list[Planned], events: Events) -> list[Parting]:
    """Where a run and its plan part, up to the first event of another kind: what may follow that one no plan says."""
    found: list[Parting] = []
    ordered = [(position, event) for position, event in enumerate(events) if is_ordered(schedule, event)]
    for planned, (position, event) in zip(plan, ordered, strict=False):
        if planned.kind != kind_of(event):
            return [*found, Parting(position, "kind")]
        for aspect, seen in numbers_of(event).items():
            if None not in (seen, planned.numbers[aspect]) and seen != planned.numbers[aspect]:
                found.append(Parting(position, aspect))
    return found


# What rules find: how often each compared something, and how often it was not as it should be.


class Tally(NamedTuple):
    """Of one rule."""

    checks: int
    fails: int


def policy(events: Events, kind: type) -> list[tuple[int, Any]]:
    """The events of one type that belong to the policy, each with its position."""
    return [(at, e) for at, e in enumerate(events) if kind_of(e) == (kind, "policy")]


def trainings(events: Events) -> list[tuple[int, Rollout]]:
    """The rollouts that are trained, each with its position."""
    return [(at, e) for at, e in policy(events, Rollout) if e.purpose == "training"]


def measured(events: Events, name: str, kind: type) -> list[tuple[int, Any, Any]]:
    """Numbers with the event that they belong to, each with the position at which they came.

    They belong to the latest event before them that has their index (and role), and each event gets numbers once.
    """

    def key(item: Any) -> tuple[int, str]:
        return item.index, getattr(item, "role", "policy")

    came = [(at, value) for at, e in enumerate(events) if isinstance(e, Measured) for value in getattr(e, name)]
    found = []
    for number, (at, value) in enumerate(came):
        candidates = [
            made
            for made, event in enumerate(events[:at])
            if isinstance(event, kind)
            and key(event) == key(value)
            and not (isinstance(event, MicroBatch) and event.role == "critic")
        ]
        if candidates and not any(before > candidates[-1] and key(v) == key(value) for before, v in came[:number]):
            found.append((at, value, events[candidates[-1]]))
    return found


def until_unobserved(events: Events, *topics: str) -> Events:
    """The events up to the moment from which one of these topics could not be observed."""
    blind = (at for at, event in enumerate(events) if isinstance(event, Unobserved) and event.what in topics)
    return events[: next(blind, len(events))]


def counts(events: Events) -> Counts:
    updates = [e for e in events if isinstance(e, Update)]
    return Counts(
        rollouts=len(trainings(events)),
        samples=sum(e.samples for _, e in trainings(events)),
        microbatches=len(policy(events, MicroBatch)),
        updates=sum(e.applied and e.role == "policy" for e in updates),
        critic_updates=sum(e.applied and e.role == "critic" for e in updates),
        skipped_updates=sum(not e.applied for e in updates),
        old_logprob_refreshes=len(policy(events, Refresh)),
        weight_syncs=len(policy(events, WeightSync)),
        evaluation_rollouts=len(policy(events, Rollout)) - len(trainings(events)),
        evaluations=len(policy(events, Evaluated)),
        data_epochs_ended=len(policy(events, EpochEnd)),
    )


class OfLag(NamedTuple):
    """|log ratio| of all micro-batches at one lag."""

    microbatches: int
    maximum: float
    mean: float


def lags(events: Events) -> dict[int, OfLag]:
    pairs = [
        (lag_of(event), values)
        for _, values, event in measured(events, "microbatches", MicroBatch)
        if values.max_abs_log_ratio is not None and values.mean_abs_log_ratio is not None
    ]
    found = {}
    for lag in sorted({lag for lag, _ in pairs if lag is not None}):
        own = [values for other, values in pairs if other == lag]
        mean = sum(values.mean_abs_log_ratio for values in own) / len(own)
        found[lag] = OfLag(len(own), max(values.max_abs_log_ratio for values in own), mean)
    return found


def value_tallies(schedule: Schedule, events: Events) -> dict[str, Tally]:
    """Rules that look at single events and their numbers, whatever the order of events."""
    return {
        "RLS209": _tally(_no_update(events)),
        "RLS210": _tally(event.applied for event in events if isinstance(event, Update)),
        "RLS301": _tally(_at_lag_zero(until_unobserved(events, "log_ratio"))),
        "RLS302": _tally(_stuck_at_one(until_unobserved(events, "log_ratio", "weights"))),
        "RLS304": _tally(_without_old(events)),
        "RLS305": _tally(_intact(events, "old_intact")),
        "RLS306": _tally(_intact(events, "tokens_intact")),
        "RLS401": _tally(_weights_changed(until_unobserved(events, "weights"))),
        "RLS402": _tally(_sampler_version(schedule, events)),
        "RLS403": _tally(_sampler_gap(events)),
        "RLS404": _tally(_moved_between(until_unobserved(events, "weights"))),
        "RLS501": _tally(e.groups_intact for _, e in trainings(events) if e.groups_intact is not None),
        "RLS502": samples_conserved(schedule, events),
        "RLS503": _tally(_evaluation_trained(events)),
        "RLS504": _tally(event.rollouts == event.batches for event in events if isinstance(event, Evaluated)),
        "RLS505": _no_signal(events),
        "RLS602": _tally(_ticks(schedule, until_unobserved(events, "learning_rate"))),
        "RLS603": _rate_at_zero(until_unobserved(events, "learning_rate")),
        "RLS802": _constants(until_unobserved(events, "loss")),
    }


def _tally(comparisons: Iterator[bool]) -> Tally:
    results = list(comparisons)
    return Tally(len(results), results.count(False))


def _no_update(events: Events) -> Iterator[bool]:
    for at, event in policy(events, RunEnded):
        updated = any(update.applied for _, update in policy(events[:at], Update))
        if event.status == "completed" and (updated or not event.stopped):
            yield updated


def _at_lag_zero(events: Events) -> Iterator[bool]:
    for _, values, event in measured(events, "microbatches", MicroBatch):
        own = event.old_source not in ("detach", "engine")
        if own and lag_of(event) == 0 and values.mean_abs_log_ratio is not None:
            yield values.mean_abs_log_ratio <= 1e-4


def _stuck_at_one(events: Events) -> Iterator[bool]:
    for at, values, event in measured(events, "microbatches", MicroBatch):
        if event.old_source == "detach" or event.sampled_version is None or values.tokens < 8:
            continue
        fresh = event.old_version is not None and (lag_of(event) or 0) <= 0
        if fresh or values.max_abs_log_ratio is None:
            continue
        # Of several numbers for one version, as after a skipped update, the latest count.
        known = [
            (update.version, found.max_change or 0.0)
            for _, found, update in measured(events[: at + 1], "updates", Update)
            if update.role == "policy"
        ]
        between = range(event.sampled_version + 1, event.policy_version + 1)
        if any(change >= 1e-7 for version, change in dict(known).items() if version in between):
            yield values.max_abs_log_ratio != 0.0


def _without_old(events: Events) -> Iterator[bool]:
    for _, event in policy(events, MicroBatch):
        if event.old_source == "detach" and event.sampled_version is not None:
            yield event.sampled_version == event.policy_version


def _intact(events: Events, name: str) -> Iterator[bool]:
    for _, values, _event in measured(events, "microbatches", MicroBatch):
        if getattr(values, name) is not None:
            yield getattr(values, name)


def _weights_changed(events: Events) -> Iterator[bool]:
    for _, values, event in measured(events, "updates", Update):
        if event.applied and values.visible and event.learning_rate:
            yield values.changed > 0


def _sampler_version(schedule: Schedule, events: Events) -> Iterator[bool]:
    versions = [event.policy_version for _, event in trainings(events)]
    for number, (_, event) in enumerate(trainings(events)):
        if schedule.max_age is not None and event.sampler_version is not None:
            oldest = versions[max(number - schedule.max_age, 0)]
            yield oldest <= event.sampler_version <= event.policy_version


def _sampler_gap(events: Events) -> Iterator[bool]:
    for _, values, event in measured(events, "rollouts", Rollout):
        if values.sampler_gap_mean is not None and event.sampler_version in (None, event.policy_version):
            yield values.sampler_gap_mean <= 1e-3


def _moved_between(events: Events) -> Iterator[bool]:
    for at, values, event in measured(events, "updates", Update):
        if event.index > 0 and (event.role == "critic" or len(policy(events[:at], Update)) >= 2):
            yield not values.moved_before


def _evaluation_trained(events: Events) -> Iterator[bool]:
    for at, event in policy(events, MicroBatch):
        if event.trained is not None:
            evaluated = [e.index for _, e in policy(events[:at], Rollout) if e.purpose == "evaluation"]
            yield not any(part.rollout in evaluated for part in event.trained)


def _no_signal(events: Events) -> Tally:
    found = [
        (at, values.max_abs_advantage)
        for at, values, event in measured(events, "rollouts", Rollout)
        if event.purpose == "training" and values.max_abs_advantage is not None
    ]
    fails = 0
    for end, event in policy(events, RunEnded):
        before = [advantage for at, advantage in found if at < end]
        fails += event.status == "completed" and bool(before) and not any(advantage > 0 for advantage in before)
    return Tally(len(found), fails)


def _ticks(schedule: Schedule, events: Events) -> Iterator[bool]:
    known = [(at, event) for at, event in policy(events, Update) if event.lr_tick is not None]
    for (at_before, before), (at, event) in itertools.pairwise(known):
        if before.applied and event.applied and schedule.lr_clock in ("update", "rollout"):
            same_rollout = not trainings(events[at_before:at])
            planned = 0 if same_rollout and schedule.lr_clock == "rollout" else 1
            yield event.lr_tick - before.lr_tick == planned


def _rate_at_zero(events: Events) -> Tally:
    def rates(events: Events) -> list[float]:
        return [e.learning_rate for _, e in policy(events, Update) if e.applied and e.learning_rate is not None]

    ends = [
        before
        for at, ended in policy(events, RunEnded)
        if any(before := rates(events[:at])) or (ended.status == "completed" and not ended.stopped)
    ]
    return Tally(len(rates(events)), sum(before[-1:] == [0.0] for before in ends))


def _constants(events: Events) -> Tally:
    seen = [event for event in events if isinstance(event, MicroBatch)]
    return Tally(sum(len(event.constants) for event in seen), sum(len(event.with_gradient) for event in seen))


class Cycle(NamedTuple):
    """Rollouts that are trained together: index -> rollout, and its position."""

    rollouts: dict[int, tuple[int, Rollout]]
    end: int
    """Position of the rollout that replaces them, or the length of the run."""
    replaced: bool


def cycles(schedule: Schedule, events: Events) -> list[Cycle]:
    found: list[Cycle] = []
    current: dict[int, tuple[int, Rollout]] = {}
    for at, event in trainings(events):
        if len(current) >= schedule.rollouts_per_cycle:
            found.append(Cycle(current, at, replaced=True))
            current = {}
        current = current | {event.index: (at, event)}
    return [*found, Cycle(current, len(events), replaced=False)]


def samples_conserved(schedule: Schedule, events: Events) -> Tally:
    """Each sample of a rollout trained once in each pass, before the next cycle of rollouts replaces it."""
    checks = fails = settled = 0
    passes = schedule.reuse_epochs
    whole = schedule.loop == "phases" and schedule.remainder in ("error", "keep") and schedule.world_size == 1
    for cycle in cycles(schedule, events):
        sizes = {index: _own_size(rollout) for index, (_, rollout) in cycle.rollouts.items()}
        own_time = policy(events[settled : cycle.end], MicroBatch)
        unknown, settled = sum(event.samples for _, event in own_time if event.trained is None), cycle.end
        for index, (since, _) in cycle.rollouts.items():
            times = _times(events[since : cycle.end], index)
            if cycle.replaced and times:  # where nothing was trained, the order of events is what is wrong
                own = [min(times[row], passes) for row in range(sizes[index])]
                number = _number(events[: cycle.end], index)
                lost = passes * _left_out(schedule, number, sizes[index], cycle.rollouts[index][1])
                lacking = sizes[index] * passes - sum(own) - lost
                checks += not 0 < lacking <= unknown
                fails += lacking > max(unknown, 0)
        first = min((since for since, _ in cycle.rollouts.values()), default=cycle.end)
        for at, event in policy(events[: cycle.end], MicroBatch):
            if at < first or event.trained is None:
                continue
            identified = all(before.trained is not None for _, before in policy(events[:at], MicroBatch))
            surplus = False
            for number, part in enumerate(event.trained):
                since = cycle.rollouts[part.rollout][0] if part.rollout in cycle.rollouts else at
                if since >= at:
                    continue
                before = _times(events[since:at], part.rollout) + _rows(event.trained[:number], part.rollout)
                begun = before.total() // max(sizes[part.rollout], 1) + 1
                allowed = min(begun, passes) if whole and identified else passes
                after = before + Counter(part.rows)
                surplus = surplus or any(after[row] > allowed for row in part.rows)
            fails += surplus
        if not cycle.replaced and cycle.rollouts:
            for end, _ in policy(events, RunEnded):
                checks += end > max(since for since, _ in cycle.rollouts.values()) and all(
                    _times(events[since:end], index)[row] >= passes
                    for index, (since, _) in cycle.rollouts.items()
                    for row in range(sizes[index])
                )
    return Tally(checks, fails)


def _own_size(rollout: Rollout) -> int:
    return rollout.samples if rollout.own_samples is None else rollout.own_samples


def _rows(parts: tuple[Any, ...], rollout: int) -> Counter[int]:
    return Counter(row for part in parts if part.rollout == rollout for row in part.rows)


def _times(events: Events, rollout: int) -> Counter[int]:
    """How often each row of one rollout was trained."""
    return sum((_rows(e.trained or (), rollout) for _, e in policy(events, MicroBatch)), Counter())


def _number(events: Events, index: int) -> int:
    """Which training rollout has this index; the latest of several."""
    return max(number for number, (_, event) in enumerate(trainings(events)) if event.index == index)


def _left_out(schedule: Schedule, number: int, size: int, rollout: Rollout) -> int:
    """Samples of a rollout that each pass leaves out on a process, by the framework's formula."""
    whole = rollout.samples * (schedule.world_size if rollout.own_samples is None else 1)
    if schedule.remainder == "drop" and whole != schedule.samples_per_rollout:
        left = whole // schedule.world_size
        for minibatch in schedule.minibatches:
            own = minibatch // schedule.world_size
            if own > left:
                break
            left -= own
        return left + size - whole // schedule.world_size
    if schedule.remainder != "carry" or not schedule.samples_per_microbatch:
        return schedule.samples_dropped_per_rollout // schedule.world_size
    each = schedule.samples_per_microbatch // schedule.world_size
    if schedule.frozen_samples_kept and number == schedule.frozen_rollouts:
        return each - 1  # it trains together with samples that waited, and any of them may be left out
    return size % each


COMPARES = {
    "RLS201": {Rollout},
    "RLS202": {Rollout},
    "RLS203": {Update},
    "RLS204": {Update},
    "RLS205": {EpochEnd},
    "RLS206": {RunEnded},
    "RLS207": {Rollout, MicroBatch},
    "RLS208": {Update},
    "RLS211": {Update},
    "RLS303": {Rollout, Refresh},
    "RLS307": {MicroBatch},
    "RLS308": {Rollout},
    "RLS405": {WeightSync},
}
"""Rules about the order of events: what each compares with the plan."""

CLAIMS = {"samples": "RLS207", "lag": "RLS307", "microbatches": "RLS208", "reference": "RLS308"}
"""The rule that reports each number; a version is reported by that of the event which has it."""


def order_tallies(schedule: Schedule, events: Events, found: list[Parting]) -> dict[str, Tally]:
    """Rules about the order of events, in a run whose events all have the planned kind."""
    differing = {parting.position for parting in found}
    agreeing = Counter(
        type(event) for at, event in enumerate(events) if at not in differing and is_ordered(schedule, event)
    )
    claimed = Counter(
        CLAIMS.get(aspect) or ("RLS303" if isinstance(events[at], Refresh) else "RLS405") for at, aspect in found
    )
    unknown = sum(event.policy_version is None for _, event in policy(events, Refresh))
    unseen = Counter(RLS307=sum(lag_of(event) is None for _, event in policy(events, MicroBatch)))
    return {
        code: Tally(
            max(sum(agreeing[kind] for kind in kinds) + claimed[code] - unseen[code], 0),
            claimed[code] + (unknown if code == "RLS303" else 0),
        )
        for code, kinds in COMPARES.items()
    }
