"""The matcher: silent on a run that follows its plan, exact about the first event that does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rlstep_hooks.judge.conformance import Conformance, Difference, OrderedEvent
from rlstep_hooks.judge.timeline import LoaderPosition
from rlstep_hooks.record.events import EpochEnd, MicroBatch, Refresh, Rollout, RunEnded, Update
from rlstep_hooks.systems.trl.observe.resume import resume_position
from tests.scripted import RELEASES, Case, cases, make_plan, scripted_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.planning.schedule import Schedule

Found = list[tuple[int, Difference]]
"""Differences, each with the index of the event at which it was found."""

REUSE = make_plan(iterations=2, max_steps=8)
"""` GollSllS` four times."""


def ordered(schedule: Schedule, start: LoaderPosition | None = None) -> list[OrderedEvent]:
    events = scripted_run(schedule, start=start, measured=False)
    return [e for e in events if isinstance(e, Rollout | Refresh | MicroBatch | Update | EpochEnd | RunEnded)]


def match(schedule: Schedule, events: list[OrderedEvent], start: LoaderPosition | None = None) -> Found:
    conformance = Conformance(schedule, start or LoaderPosition())
    return [(index, found) for index, event in enumerate(events) for found in conformance.observe(event)]


def count(kind: type, events: list[OrderedEvent]) -> int:
    return sum(isinstance(event, kind) for event in events)


def index_of(events: list[OrderedEvent], kind: type, number: int) -> int:
    """Where the event of this kind and number (from 0) stands."""
    return [index for index, event in enumerate(events) if isinstance(event, kind)][number]


def check_place(found: Difference, before: list[OrderedEvent]) -> None:
    """The place named is that of the event: what was seen before it."""
    assert found.where.microbatch == count(MicroBatch, before)
    assert found.where.update == count(Update, before)
    assert found.where.epoch == count(EpochEnd, before)


def check_found(schedule: Schedule, events: list[OrderedEvent], first: int, *, at_once: bool) -> None:
    """The first difference is at `first`, or (a micro-batch too few or too many) at the latest at the next rollout."""
    found = match(schedule, events)
    assert found, "the fault was not found"
    index, difference = found[0]
    next_rollout = next((i for i, e in enumerate(events) if i >= first and isinstance(e, Rollout)), len(events) - 1)
    assert first <= index <= (first if at_once else next_rollout)
    assert difference.observed is events[index]
    check_place(difference, events[:index])


@given(cases())
def test_a_run_as_planned_has_no_difference(case: Case) -> None:
    events = ordered(case.schedule)
    conformance = Conformance(case.schedule, LoaderPosition())
    assert not any(conformance.observe(event) for event in events)
    assert conformance.checks == len(events)


@given(cases(), st.data())
def test_a_dropped_event_is_found(case: Case, data: st.DataObject) -> None:
    events = ordered(case.schedule)
    index = data.draw(st.integers(0, len(events) - 2))  # without its end a run is incomplete, not different
    at_once = not isinstance(events[index], MicroBatch)
    check_found(case.schedule, events[:index] + events[index + 1 :], index, at_once=at_once)


@given(cases(), st.data())
def test_a_duplicated_event_is_found(case: Case, data: st.DataObject) -> None:
    events = ordered(case.schedule)
    index = data.draw(st.integers(0, len(events) - 2))
    at_once = not isinstance(events[index], MicroBatch)
    check_found(case.schedule, [*events[: index + 1], *events[index:]], index + 1, at_once=at_once)


@given(cases(), st.data())
def test_swapped_events_are_found(case: Case, data: st.DataObject) -> None:
    events = ordered(case.schedule)
    index = data.draw(st.integers(0, len(events) - 2))
    left, right = events[index : index + 2]
    assume(type(left) is not type(right))
    check_found(case.schedule, [*events[:index], right, left, *events[index + 2 :]], index, at_once=True)


def changed(event: OrderedEvent) -> list[tuple[str, OrderedEvent]]:
    """Every way to change one number of an event that the plan fixes, with the aspect that differs then."""
    replace = msgspec.structs.replace
    if isinstance(event, Rollout):
        return [
            ("samples", replace(event, samples=event.samples + 1)),
            ("reference", replace(event, reference=not event.reference)),
        ]
    if isinstance(event, Refresh):
        return [("version", replace(event, policy_version=(event.policy_version or 0) - 1))]
    if isinstance(event, MicroBatch):
        older = {"sampled_version": (event.sampled_version or 0) - 1}
        if event.old_version is not None:
            older["old_version"] = event.old_version - 1
        return [("samples", replace(event, samples=event.samples - 1)), ("lag", replace(event, **older))]
    if isinstance(event, Update):
        return [("microbatches", replace(event, microbatches=event.microbatches + 1))]
    return []


@given(cases(), st.data())
def test_a_changed_number_is_found_and_what_follows_is_judged(case: Case, data: st.DataObject) -> None:
    events = ordered(case.schedule)
    index = data.draw(st.sampled_from([i for i, e in enumerate(events) if changed(e)]))
    aspect, event = data.draw(st.sampled_from(changed(events[index])))
    found = match(case.schedule, [*events[:index], event, *events[index + 1 :]])
    assert [(place, difference.aspect) for place, difference in found] == [(index, aspect)]
    assert found[0][1].observed is event
    check_place(found[0][1], events[:index])


@pytest.mark.parametrize("number", [0, 2])
def test_a_difference_in_a_rollout_names_that_rollout(number: int) -> None:
    events = ordered(REUSE)
    index = index_of(events, Rollout, number)
    events[index] = changed(events[index])[0][1]
    [(_, found)] = match(REUSE, events)
    assert found.where.rollout == number


@pytest.mark.parametrize("number", [0, 5, 15])
def test_a_difference_in_a_microbatch_names_its_rollout(number: int) -> None:
    events = ordered(REUSE)
    index = index_of(events, MicroBatch, number)
    events[index] = changed(events[index])[0][1]
    [(_, found)] = match(REUSE, events)
    assert found.where.rollout == number // REUSE.microbatches_per_cycle


# After a difference the matcher goes on from the next rollout: each fault is reported once, and a second one is found.


def drop(kind: type, number: int) -> Callable[[list[OrderedEvent]], list[OrderedEvent]]:
    def spoil(events: list[OrderedEvent]) -> list[OrderedEvent]:
        index = index_of(events, kind, number)
        return events[:index] + events[index + 1 :]

    return spoil


def repeat(kind: type, number: int) -> Callable[[list[OrderedEvent]], list[OrderedEvent]]:
    def spoil(events: list[OrderedEvent]) -> list[OrderedEvent]:
        index = index_of(events, kind, number)
        return events[: index + 1] + events[index:]

    return spoil


def swap(kind: type, number: int) -> Callable[[list[OrderedEvent]], list[OrderedEvent]]:
    """Exchange an event with the one after it."""

    def spoil(events: list[OrderedEvent]) -> list[OrderedEvent]:
        index = index_of(events, kind, number)
        return [*events[:index], events[index + 1], events[index], *events[index + 2 :]]

    return spoil


ONCE = {
    "a refresh is missing": drop(Refresh, 1),
    "old log-probs are computed again": repeat(Refresh, 1),
    "a micro-batch is missing before an update": drop(MicroBatch, 4),
    "a micro-batch is missing after an update": drop(MicroBatch, 6),
    "a micro-batch is trained twice": repeat(MicroBatch, 4),
    "an update comes early": swap(MicroBatch, 5),
    "an update comes late": swap(Update, 2),
}


@pytest.mark.parametrize("fault", ONCE)
def test_one_fault_is_one_difference_and_the_rest_is_judged(fault: str) -> None:
    events = ONCE[fault](ordered(REUSE))
    [(_, first)] = match(REUSE, events)
    assert first.where.rollout == 1

    second = index_of(events, MicroBatch, -1)
    aspect, events[second] = changed(events[second])[0]
    found = match(REUSE, events)
    assert [(d.where.rollout, d.aspect) for _, d in found] == [(1, first.aspect), (3, aspect)]


@pytest.mark.parametrize("accumulation", [2, 3, 4])
@pytest.mark.parametrize("spoil", [drop(MicroBatch, 1), repeat(MicroBatch, 1)], ids=["drop", "repeat"])
def test_a_microbatch_too_few_or_too_many_does_not_shift_later_updates(
    accumulation: int, spoil: Callable[[list[OrderedEvent]], list[OrderedEvent]]
) -> None:
    schedule = make_plan(accumulation=accumulation, iterations=2, epochs=2)
    differences = [(d.where.rollout, d.aspect) for _, d in match(schedule, spoil(ordered(schedule)))]
    assert differences == [(0, "kind")]


def test_a_rollout_in_mid_cycle_starts_a_cycle_of_its_own() -> None:
    """A sample buffer that is cleared: TRL generates again and goes on with its counter."""
    schedule = make_plan(iterations=3, max_steps=6)
    events = ordered(schedule)
    at = index_of(events, MicroBatch, 2)
    replace = msgspec.structs.replace
    again: list[OrderedEvent] = [
        Rollout(index=1, samples=8, policy_version=1),
        Refresh(rollout=1, samples=8, positions=64, policy_version=1),
    ]
    rest = [
        replace(e, sampled_version=1, old_version=1) if isinstance(e, MicroBatch) and e.index < 6 else e
        for e in events[at:]
    ]
    spoiled = [*events[:at], *again, *rest]
    cut_short = index_of(spoiled, Rollout, 2)
    assert [(i, d.aspect, d.observed) for i, d in match(schedule, spoiled)] == [
        (at, "kind", again[0]),
        (cut_short, "kind", spoiled[cut_short]),
    ]


# Starts and ends other than the plain ones.


@given(cases(), st.data())
def test_a_resumed_run_as_planned_has_no_difference(case: Case, data: st.DataObject) -> None:
    schedule = case.schedule
    assume(schedule.rollouts_per_cycle == 1)  # 0.16 cannot resume within a cycle: it raises
    per_epoch = -(-(schedule.microbatches_per_epoch or 0) // schedule.microbatches_per_update)
    done = data.draw(st.integers(0, schedule.updates or 0))
    start = resume_position(schedule, updates=done, updates_per_epoch=per_epoch, skips_data=True)
    assert match(schedule, ordered(schedule, start), start) == []


@given(cases(streamed=True), st.data())
def test_the_end_of_a_stream_may_come_anywhere(case: Case, data: st.DataObject) -> None:
    events = ordered(case.schedule)
    ends = [i for i, e in enumerate(events) if isinstance(e, Update) and not isinstance(events[i + 1], EpochEnd)]
    assume(ends)
    index = data.draw(st.sampled_from(ends)) + 1
    assert match(case.schedule, [*events[:index], EpochEnd(epoch=1), *events[index:]]) == []


def test_a_window_that_the_end_of_a_stream_cuts_goes_on_in_the_next_pass() -> None:
    """transformers counts to a full window anew, with the gradients that are there."""
    schedule = make_plan(rows=None, max_steps=1)
    rollout, first, second = ordered(schedule)[:3]
    events = [rollout, first, EpochEnd(epoch=1), second, rollout, first, Update(index=0, version=1, microbatches=3)]
    assert match(schedule, events) == []


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.trl)
def test_an_early_stop_is_no_difference_but_data_that_run_out_are(release: object) -> None:
    schedule = make_plan(release=release, iterations=2, max_steps=8)  # type: ignore[arg-type]
    events = ordered(schedule)
    stop = index_of(events, Update, 3) + 1
    asked = [*events[:stop], EpochEnd(epoch=1, stopping=True), RunEnded(status="completed", updates=4, stopped=True)]
    assert match(schedule, asked) == []
    assert match(schedule, [*events[: stop - 1], RunEnded(status="raised", updates=3, error="KeyboardInterrupt")]) == []
    silent = [*events[:stop], EpochEnd(epoch=1), RunEnded(status="completed", updates=4)]
    [(index, found)] = match(schedule, silent)
    assert index == stop
    assert isinstance(found.observed, EpochEnd)


def test_skipped_updates_are_matched_with_the_version_that_stays() -> None:
    events = scripted_run(REUSE, applied=lambda index: index != 2, measured=False)
    body = [e for e in events if isinstance(e, Rollout | Refresh | MicroBatch | Update | EpochEnd | RunEnded)]
    assert match(REUSE, body) == []
    lags = [e.policy_version - (e.old_version or 0) for e in body if isinstance(e, MicroBatch)]
    assert lags == [0, 0, 1, 1, *([0] * 4), *([0, 0, 1, 1] * 2)]


def test_what_cannot_be_seen_is_no_difference() -> None:
    """A micro-batch whose samples cannot be identified has no lag, a refresh of unknown origin no version."""
    events: list[OrderedEvent] = []
    for event in ordered(REUSE):
        if isinstance(event, MicroBatch):
            event = msgspec.structs.replace(event, sampled_version=None, old_version=None)
        elif isinstance(event, Refresh):
            event = msgspec.structs.replace(event, policy_version=None)
        events.append(event)
    assert match(REUSE, events) == []
