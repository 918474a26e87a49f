"""The expected timeline, compared with the closed forms of the Schedule and with TRL's training loop written out."""

from __future__ import annotations

import math
from collections import deque
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rlstep_hooks.judge.timeline import (
    ExpectedEnd,
    ExpectedEpochEnd,
    ExpectedEvent,
    ExpectedMicroBatch,
    ExpectedRefresh,
    ExpectedRollout,
    ExpectedUpdate,
    LoaderPosition,
    expected_events,
)
from rlstep_hooks.systems.trl.observe.resume import resume_position
from tests.golden.letters import letters
from tests.scripted import RELEASES, Case, cases, make_plan

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule


def timeline(schedule: Schedule, start: LoaderPosition | None = None) -> list[ExpectedEvent]:
    return list(expected_events(schedule, start))


def without_rollouts(text: str) -> str:
    return "".join(letter for letter in text if letter in "lS")


@given(cases())
def test_sums_over_the_timeline_are_the_totals_of_the_plan(case: Case) -> None:
    schedule = case.schedule
    events = timeline(schedule)
    rollouts = [e for e in events if isinstance(e, ExpectedRollout)]
    refreshes = [e for e in events if isinstance(e, ExpectedRefresh)]
    microbatches = [e for e in events if isinstance(e, ExpectedMicroBatch)]
    updates = [e for e in events if isinstance(e, ExpectedUpdate)]
    epochs = [e for e in events if isinstance(e, ExpectedEpochEnd)]
    passes = schedule.loader_epochs
    assert passes is not None
    assert schedule.microbatches_per_epoch is not None
    assert schedule.rollouts is not None
    assert schedule.rows is not None

    assert len(updates) == schedule.updates == schedule.lr_ticks
    assert len(rollouts) == schedule.rollouts
    assert len(refreshes) == (schedule.rollouts if schedule.old_logprob_source == "at_rollout" else 0)
    assert len(microbatches) == passes * schedule.microbatches_per_epoch == sum(u.microbatches for u in updates)
    assert [e.epoch for e in epochs] == list(range(1, math.ceil(passes) + 1))
    assert events[-1] == ExpectedEnd(len(updates))

    generated = sum(e.samples for e in rollouts) * case.world_size
    assert generated == schedule.rollouts * schedule.samples_per_rollout
    assert schedule.data_epochs == Fraction(generated, case.settings.group * schedule.rows)
    assert sum(e.samples for e in microbatches) * case.world_size == len(microbatches) * schedule.samples_per_microbatch


@given(cases())
def test_one_whole_pass_consumes_all_rows_but_the_dropped_ones(case: Case) -> None:
    schedule = case.schedule
    assert schedule.rollouts_per_epoch is not None
    assert schedule.rows is not None
    prompts = schedule.rollouts_per_epoch * schedule.prompts_per_rollout
    assert schedule.rows_dropped_per_epoch == schedule.rows - prompts
    first_pass: list[ExpectedEvent] = []
    for event in expected_events(schedule):
        if isinstance(event, ExpectedEpochEnd):
            break
        first_pass.append(event)
    rollouts = sum(isinstance(e, ExpectedRollout) for e in first_pass)
    if schedule.loader_epochs is not None and schedule.loader_epochs >= 1:
        assert rollouts == schedule.rollouts_per_epoch
    else:
        assert rollouts <= schedule.rollouts_per_epoch


@given(cases())
def test_lags_are_those_of_the_plan(case: Case) -> None:
    lags = {e.lag for e in timeline(case.schedule) if isinstance(e, ExpectedMicroBatch)}
    assert lags <= set(case.schedule.lags)


@given(cases())
def test_every_slot_of_a_full_cycle_is_trained_in_each_pass(case: Case) -> None:
    schedule = case.schedule
    generated: list[int] = []
    trained: list[int] = []
    rollouts = 0
    for event in timeline(schedule):
        if isinstance(event, ExpectedRollout):
            if rollouts % schedule.rollouts_per_cycle == 0:
                generated.append(0)
                trained.append(0)
            rollouts += 1
            generated[-1] += event.samples
        elif isinstance(event, ExpectedMicroBatch):
            trained[-1] += event.samples
    full = zip(generated[:-1], trained[:-1], strict=True)  # the end of training may cut the last one
    assert all(done == schedule.reuse_epochs * samples for samples, done in full)
    slots = schedule.slots_per_cycle * schedule.samples_per_microbatch
    assert slots == schedule.samples_per_rollout * schedule.rollouts_per_cycle


def loop(case: Case) -> tuple[str, list[int]]:
    """TRL's training loop, written out: its letters without refreshes, and the lag of each micro-batch.

    `_prepare_inputs` of 0.16.1 generates when `global_step % num_iterations == 0`, that of later releases when
    `_step % (steps_per_generation * num_iterations) == 0`; transformers steps when `(step + 1) % accumulation == 0` or at
    the end of a pass.
    """
    settings, period = case.settings, case.settings.steps_per_generation
    assert case.rows is not None
    chunk = settings.batch * case.world_size * period // settings.group
    length = case.rows // chunk * period * settings.iterations
    text, lags = "", []
    made_at: dict[int, int] = {}
    step = global_step = 0
    while True:
        for index in range(length):
            if not case.release.since("0.17"):  # one generation for each micro-batch of the first pass
                if global_step % settings.iterations == 0:
                    made_at[step % period] = global_step
                    text += " G"
            elif step % (period * settings.iterations) == 0:
                made_at = dict.fromkeys(range(period), global_step)
                text += " G"
            lags.append(global_step - made_at[step % period])
            text += "l"
            step += 1
            if (index + 1) % settings.accumulation == 0 or index + 1 == length:
                global_step += 1
                text += "S"
                if global_step == case.schedule.updates:
                    return text, lags


@given(cases())
def test_the_timeline_is_that_of_the_training_loop(case: Case) -> None:
    events = timeline(case.schedule)
    text, lags = loop(case)
    assert letters(events).translate(str.maketrans("", "", "nor")) == text
    assert [e.lag for e in events if isinstance(e, ExpectedMicroBatch)] == lags


@given(cases(), st.data())
def test_skipped_updates_keep_the_version(case: Case, data: st.DataObject) -> None:
    events = expected_events(case.schedule)
    event, version, updates = next(events), 0, 0
    sampled: deque[int] = deque(maxlen=case.schedule.rollouts_per_cycle)
    while not isinstance(event, ExpectedEnd):
        made = None
        if isinstance(event, ExpectedRollout):
            sampled.append(version)
            assert event.version == version
        elif isinstance(event, ExpectedRefresh):
            assert event.version == version
        elif isinstance(event, ExpectedMicroBatch):
            assert version - event.lag in sampled
        elif isinstance(event, ExpectedUpdate):
            made = data.draw(st.booleans())
            version, updates = version + made, updates + 1
        event = events.send(made)
    assert updates == case.schedule.updates == event.updates


@given(cases(streamed=True))
def test_a_stream_has_updates_but_no_pass_until_training_ends(case: Case) -> None:
    events = timeline(case.schedule)
    assert sum(isinstance(e, ExpectedUpdate) for e in events) == case.settings.max_steps
    assert [type(e) for e in events if isinstance(e, ExpectedEpochEnd | ExpectedEnd)] == [ExpectedEpochEnd, ExpectedEnd]
    assert all(e.microbatches == case.settings.accumulation for e in events if isinstance(e, ExpectedUpdate))


def test_a_run_of_unknown_length_never_ends() -> None:
    events = expected_events(make_plan(rows=None))
    assert not any(isinstance(next(events), ExpectedEnd | ExpectedEpochEnd) for _ in range(1000))


def test_rows_that_fill_no_rollout_give_no_event() -> None:
    schedule = make_plan(rows=1)
    assert (schedule.updates, schedule.rollouts, schedule.rows_dropped_per_epoch) == (0, 0, 1)
    assert timeline(schedule) == [ExpectedEnd(0)]


@given(cases(), st.data())
def test_a_resumed_run_makes_up_what_is_left(case: Case, data: st.DataObject) -> None:
    schedule = case.schedule
    assume(case.release.since("0.17"))  # 0.16 cannot resume within a cycle: it raises
    # Up to 0.19 transformers counts dropped rows, and resumes elsewhere than planned.
    assume(case.release.since("0.20") or not schedule.rows_dropped_per_epoch)
    assert schedule.updates is not None
    assert schedule.microbatches_per_epoch is not None
    done = data.draw(st.integers(0, schedule.updates))
    per_epoch = math.ceil(Fraction(schedule.microbatches_per_epoch, schedule.microbatches_per_update))
    position = resume_position(schedule, updates=done, updates_per_epoch=per_epoch, skips_data=True)
    whole, rest = timeline(schedule), timeline(schedule, position)
    before = [index for index, e in enumerate(whole) if isinstance(e, ExpectedUpdate)][:done]
    tail = whole[before[-1] + 1 :] if before else whole
    assert without_rollouts(letters(rest)) == without_rollouts(letters(tail))
    assert rest[-1] == whole[-1]
    assert isinstance(rest[0], ExpectedRollout | ExpectedEnd), "samples are not in a checkpoint: generation comes first"
    # An interrupted rollout is made again: one more than the uninterrupted run has left.
    made_again = sum(isinstance(e, ExpectedRollout) for e in rest) - sum(isinstance(e, ExpectedRollout) for e in tail)
    assert made_again == (position.cycle > 0 and done < schedule.updates)


def test_a_resume_without_skipped_data_begins_its_pass_anew() -> None:
    schedule = make_plan(iterations=2, max_steps=8)
    position = resume_position(schedule, updates=3, updates_per_epoch=36, skips_data=False)
    assert position == LoaderPosition(updates=3, version=3)
    assert resume_position(schedule, updates=0, updates_per_epoch=36, skips_data=True) == LoaderPosition()


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.trl)
def test_ratio_one_updates_are_those_without_lag(release: object) -> None:
    schedule = make_plan(release=release, iterations=3)  # type: ignore[arg-type]
    assert schedule.lags == (0, 1, 2)
    assert schedule.ratio_one_updates == (1,)
    assert schedule.updates_per_rollout * schedule.rollouts_per_cycle == 3
