"""The timeline of runs in phases, compared with the closed forms of the plan and with measured runs of OpenRLHF."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstep_hooks.judge.timeline import (
    ExpectedEnd,
    ExpectedEpochEnd,
    ExpectedEvent,
    ExpectedMicroBatch,
    ExpectedRefresh,
    ExpectedRollout,
    ExpectedSync,
    ExpectedUpdate,
    PhasePosition,
    cursor_at,
    expected_events,
)
from rlstep_hooks.judge.timeline.phases import PhaseCursor, places_epoch_ends
from rlstep_hooks.record.events import EpochEnd, MicroBatch, Rollout, Update
from tests.scripted_phases import PhaseCase, composed, phase_cases, phase_plan, scripted_phases

END = 300
"""Events after which a timeline without an end is left."""

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule


def timeline(schedule: Schedule, start: PhasePosition | None = None, *, taken: int = 2) -> list[ExpectedEvent]:
    """The timeline where every update is applied and, where token counts decide, micro-batches have `taken` samples."""
    events = []
    generator = expected_events(schedule, start)
    event: ExpectedEvent | None = next(generator)
    while event is not None and len(events) < END:
        events.append(event)
        outcome = None
        if isinstance(event, ExpectedMicroBatch) and event.samples is None:
            assert event.at_most is not None
            outcome = min(taken, event.at_most)
        try:
            event = generator.send(outcome)
        except StopIteration:
            event = None
    return events


def of_kind(kind: type, events: list[ExpectedEvent]) -> list[ExpectedEvent]:
    return [event for event in events if isinstance(event, kind)]


def by_role(kind: type, role: str, events: list[ExpectedEvent]) -> list[ExpectedEvent]:
    return [event for event in of_kind(kind, events) if event.role == role]  # type: ignore[union-attr]


@given(phase_cases(finite=True))
def test_sums_over_the_timeline_are_the_totals_of_the_plan(case: PhaseCase) -> None:
    schedule = case.schedule
    assert schedule.rollouts is not None
    events = timeline(schedule)
    assert len(of_kind(ExpectedRollout, events)) == schedule.rollouts
    assert len(by_role(ExpectedUpdate, "policy", events)) == schedule.updates
    assert events[-1] == ExpectedEnd(schedule.updates or 0)
    refreshes = schedule.rollouts if schedule.old_logprob_source in ("recompute", "at_rollout") else 0
    assert len(of_kind(ExpectedRefresh, events)) == refreshes
    syncs = {"unseen": 0, "after_updates": schedule.rollouts, "first_and_after_updates": schedule.rollouts + 1}
    assert len(of_kind(ExpectedSync, events)) == syncs[schedule.syncs]
    ends = (schedule.rollouts - 1) // schedule.rollouts_per_epoch if schedule.rollouts_per_epoch else 0
    planned = list(range(1, ends + 1)) if places_epoch_ends(schedule) else []
    assert [event.epoch for event in of_kind(ExpectedEpochEnd, events)] == planned  # type: ignore[union-attr]


@given(phase_cases(finite=True, dynamic=False))
def test_each_pass_trains_all_samples_that_the_plan_does_not_leave_out(case: PhaseCase) -> None:
    schedule = case.schedule
    assert schedule.rollouts is not None
    events = timeline(schedule)
    trained = sum(e.samples for e in by_role(ExpectedMicroBatch, "policy", events)) * schedule.world_size  # type: ignore[union-attr, misc]
    if schedule.remainder == "carry":
        assert schedule.samples_per_microbatch is not None
        assert trained % schedule.samples_per_microbatch == 0
        windows, rest = divmod(trained // schedule.samples_per_microbatch, schedule.window)
        assert (windows, rest < schedule.window) == (schedule.updates, True)
    else:
        passes = schedule.reuse_epochs * (schedule.rollouts - schedule.frozen_rollouts)
        assert trained == passes * schedule.samples_trained_per_rollout


@given(phase_cases(finite=True, critic=True))
def test_a_critic_trains_in_every_rollout_that_is_its_own(case: PhaseCase) -> None:
    schedule, critic = case.schedule, case.schedule.critic
    assert critic is not None
    assert schedule.rollouts is not None
    events = timeline(schedule)
    assert all(e.lag is None for e in by_role(ExpectedMicroBatch, "critic", events))  # type: ignore[union-attr]
    updates = len(by_role(ExpectedUpdate, "critic", events))
    if not critic.warmup_minibatches:
        assert updates == critic.updates
        return
    own = range(critic.frozen_rollouts, schedule.rollouts)
    waits = sum(1 for rollout in own if rollout < schedule.frozen_rollouts)
    passes = waits * len(critic.warmup_minibatches) + (len(own) - waits) * len(critic.minibatches)
    assert updates == passes * critic.reuse_epochs


@given(phase_cases())
def test_lags_count_the_updates_since_the_rollout(case: PhaseCase) -> None:
    made = 0
    schedule = case.schedule
    counted = schedule.old_logprob_source != "engine" or schedule.max_age == 0
    for event in timeline(schedule):
        if isinstance(event, ExpectedRollout):
            made = 0
        elif isinstance(event, ExpectedUpdate):
            made += event.role == "policy"
        elif isinstance(event, ExpectedMicroBatch) and event.role == "policy":
            assert event.lag == (made if counted else None)


def goes_on(case: PhaseCase, number: int) -> bool:
    """Whether what follows a rollout is the same, begun there with what was seen so far or at the start of training."""
    whole = timeline(case.schedule)
    starts = [index for index, event in enumerate(whole) if isinstance(event, ExpectedRollout)]
    cursor = cursor_at(case.schedule, PhasePosition())
    assert isinstance(cursor, PhaseCursor)
    moves = {
        Rollout: cursor.rollout,
        MicroBatch: cursor.microbatch,
        Update: cursor.update,
        EpochEnd: cursor.epoch_end,
    }
    for event in composed(scripted_phases(case)):
        if isinstance(event, Rollout) and cursor.rollouts == number:
            rest = timeline(case.schedule, before := cursor.at_rollout(event))
            cursor.rollout(event)
            assert cursor.at_rollout(event, passed=True) == before
            return rest[: END - starts[number]] == whole[starts[number] :]
        if type(event) in moves:
            moves[type(event)](event)
    raise AssertionError("there is no such rollout")


@given(phase_cases(), st.data())
def test_a_timeline_goes_on_from_any_rollout(case: PhaseCase, data: st.DataObject) -> None:
    case = PhaseCase(schedule=case.schedule, ages=case.ages)
    assert goes_on(case, data.draw(st.integers(0, case.rollouts - 1)))


def updates_of_rollouts(schedule: Schedule, role: str = "policy") -> list[int]:
    made: list[int] = []
    for event in timeline(schedule):
        if isinstance(event, ExpectedRollout):
            made.append(0)
        elif isinstance(event, ExpectedUpdate) and event.role == role:
            made[-1] += 1
    return made


OPENRLHF: dict[str, tuple[Schedule, list[int], list[int]]] = {
    # 16 samples, train.batch_size 12 in micro-batches of 4: updates after 3, 6, 9, 12, 15 of 16 micro-batches.
    "an accumulation that a rollout does not fill": (
        phase_plan(samples=16, microbatch=4, window=3, rollouts=4),
        [1, 1, 2, 1],
        [],
    ),
    # 30 prompts: 16, 16, 16 and 12 samples, 8 to an update; the last micro-batch is never applied.
    "a smaller last rollout": (
        phase_plan(samples=16, microbatch=4, window=2, rollouts=4, per_epoch=4, last=12),
        [2, 2, 2, 1],
        [],
    ),
    # critic.freezing_steps=1 freezes two rollouts, whose samples wait: 48 samples in the first that trains the policy.
    "samples of frozen rollouts": (
        phase_plan(
            samples=16,
            microbatch=4,
            window=2,
            rollouts=4,
            frozen=2,
            kept=True,
            critic=phase_plan(samples=16, microbatch=4, window=2, rollouts=4),
        ),
        [0, 0, 6, 2],
        [2, 2, 2, 2],
    ),
}
"""Updates of policy and critic on each rollout, measured with OpenRLHF 0.11.2."""


@pytest.mark.parametrize("name", OPENRLHF)
def test_carried_gradients_give_the_updates_that_openrlhf_makes(name: str) -> None:
    schedule, policy, critic = OPENRLHF[name]
    assert updates_of_rollouts(schedule) == policy
    assert sum(policy) == schedule.updates
    if critic:
        assert updates_of_rollouts(schedule, "critic") == critic


@pytest.mark.parametrize("name", OPENRLHF)
@pytest.mark.parametrize("number", range(4))
def test_what_is_carried_and_what_waits_goes_on_in_mid_run(name: str, number: int) -> None:
    assert goes_on(PhaseCase(schedule=OPENRLHF[name][0]), number)


def test_lags_of_a_carried_window_change_within_it() -> None:
    """The update that a window of the rollout before completes comes after the first micro-batch: lags 0 1 1 1 and so on."""
    lags: list[list[int | None]] = []
    for event in timeline(OPENRLHF["an accumulation that a rollout does not fill"][0]):
        if isinstance(event, ExpectedRollout):
            lags.append([])
        elif isinstance(event, ExpectedMicroBatch):
            lags[-1].append(event.lag)
    assert lags == [[0, 0, 0, 1], [0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 0, 1]]


def test_a_run_of_unknown_length_goes_on_for_ever() -> None:
    assert not of_kind(ExpectedEnd, timeline(phase_plan(rollouts=None)))


def test_ends_of_passes_of_unknown_length_are_not_placed() -> None:
    assert not places_epoch_ends(phase_plan(per_epoch=None))
    assert places_epoch_ends(phase_plan(per_epoch=2))
    assert not places_epoch_ends(phase_plan(per_epoch=2, rows_bound="data_dependent"))


def test_a_rollout_in_parts_keeps_the_old_log_probs_of_its_first_weights() -> None:
    schedule = phase_plan(
        samples=8, microbatch=4, minibatches=(4, 4), reuse=2, rollouts=2, parts_per_rollout=2, lags=(0, 1, 2, 3)
    )
    generator = expected_events(schedule)
    events = list(generator)
    assert [type(event).__name__.removeprefix("Expected") for event in events[1:13]] == [
        "Rollout", *["Refresh", *["MicroBatch", "Update"] * 2] * 2, "Sync",
    ]  # fmt: skip
    assert [event.version for event in events if isinstance(event, ExpectedRefresh)] == [0, 0, 4, 4]
    assert [event.lag for event in events if isinstance(event, ExpectedMicroBatch)] == [0, 1, 2, 3] * 2
    assert [event.version for event in events if isinstance(event, ExpectedSync)] == [0, 4, 8]


def test_weights_may_be_synced_before_the_updates_of_each_rollout() -> None:
    schedule = phase_plan(rollouts=2, syncs="first_and_before_updates")
    events = [type(event).__name__.removeprefix("Expected") for event in expected_events(schedule)]
    updates = ["Refresh", *["MicroBatch", "MicroBatch", "Update"] * 2]
    assert events == ["Sync", "Rollout", "Sync", *updates, "Rollout", "Sync", *updates, "End"]
    assert [event.version for event in expected_events(schedule) if isinstance(event, ExpectedSync)] == [0, 0, 2]
