"""TRL's plan against measured runs (reference/trl.md, section 2) and against numbers from field reports."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import msgspec
import pytest

from rlstep_hooks.judge.timeline import (
    ExpectedEvent,
    ExpectedMicroBatch,
    ExpectedRollout,
    ExpectedUpdate,
    LoaderPosition,
    expected_events,
)
from rlstep_hooks.planning.schedule import Schedule, lag_pattern
from rlstep_hooks.systems.engine.index import deviations_of
from rlstep_hooks.systems.trl.observe.resume import resume_position
from tests.golden.letters import expand, letters
from tests.golden.timelines import TIMELINES, Timeline, plan_of_fields, release_of
from tests.scripted import scripted_run

RUNS = [
    pytest.param(timeline, release, id=f"{timeline.config}-{release}")
    for timeline in TIMELINES
    for release in timeline.releases
]


def start(timeline: Timeline, schedule: Schedule) -> LoaderPosition:
    assert schedule.microbatches_per_epoch is not None
    per_epoch = -(-schedule.microbatches_per_epoch // schedule.microbatches_per_update)
    return resume_position(schedule, updates=timeline.resume_at, updates_per_epoch=per_epoch, skips_data=True)


def planned(timeline: Timeline, release: str) -> list[ExpectedEvent]:
    schedule = timeline.schedule(release)
    return list(expected_events(schedule, start(timeline, schedule)))


@pytest.mark.parametrize(("timeline", "release"), RUNS)
def test_the_planned_timeline_is_the_measured_one(timeline: Timeline, release: str) -> None:
    assert letters(planned(timeline, release)) == timeline.planned_letters


@pytest.mark.parametrize(("timeline", "release"), RUNS)
def test_expected_and_observed_events_give_the_same_letters(timeline: Timeline, release: str) -> None:
    schedule = timeline.schedule(release)
    assert letters(scripted_run(schedule, start=start(timeline, schedule))) == timeline.planned_letters


@pytest.mark.parametrize(("timeline", "release"), RUNS)
def test_the_length_is_the_measured_one(timeline: Timeline, release: str) -> None:
    schedule, events = timeline.schedule(release), planned(timeline, release)
    assert schedule.lr_horizon == timeline.max_steps
    updates = sum(isinstance(e, ExpectedUpdate) for e in events)
    # Where updates are lost the plan has them: they are what the deviation is about.
    assert schedule.updates == updates + timeline.resume_at == timeline.planned_letters.count("S") + timeline.resume_at
    if not timeline.planned:
        assert schedule.updates == timeline.global_step
    if not timeline.resume_at:
        assert sum(isinstance(e, ExpectedMicroBatch) for e in events) == timeline.micro_steps
        assert sum(isinstance(e, ExpectedRollout) for e in events) == timeline.rollouts == schedule.rollouts


@pytest.mark.parametrize(("timeline", "release"), RUNS)
def test_dropped_rows_old_log_probs_and_lags_are_the_measured_ones(timeline: Timeline, release: str) -> None:
    schedule = timeline.schedule(release)
    assert schedule.rows_dropped_per_epoch == timeline.rows_dropped
    assert schedule.old_logprob_source == timeline.old_logprob_source
    assert schedule.lags == timeline.lags


# Up to 0.19 the trainer's epoch counts rows that the sampler drops.
EXACT_EPOCHS = [
    (timeline, release)
    for timeline in TIMELINES
    for release in timeline.releases
    if not timeline.rows_dropped or release_of(release).since("0.20")
]


@pytest.mark.parametrize(("timeline", "release"), EXACT_EPOCHS, ids=lambda value: getattr(value, "config", value))
def test_the_passes_of_the_loader_are_the_epochs_that_the_trainer_reports(timeline: Timeline, release: str) -> None:
    schedule = timeline.schedule(release)
    assert schedule.loader_epochs is not None
    assert float(schedule.loader_epochs) == pytest.approx(timeline.epoch, abs=5e-4)


@pytest.mark.parametrize("timeline", [t for t in TIMELINES if t.deviation], ids=lambda t: f"{t.config}-{t.releases[0]}")
def test_where_run_and_plan_part_there_is_a_known_deviation(timeline: Timeline) -> None:
    for release in timeline.releases:
        assert timeline.deviation in {d.name for d in deviations_of("TRL", release)}


def test_the_golden_data_count_their_own_letters() -> None:
    for timeline in TIMELINES:
        text = timeline.observed_letters
        assert text.count("l") == timeline.micro_steps, timeline.config
        assert text.count("G") == timeline.rollouts, timeline.config
        assert text.count("S") == timeline.global_step - timeline.resume_at, timeline.config
        assert {"at_rollout": "o", "detach": "n"}[timeline.old_logprob_source] in text
        assert timeline.global_step == timeline.max_steps or timeline.deviation, timeline.config
        assert timeline.deviation or not timeline.planned, timeline.config
    assert {t.config for t in TIMELINES} >= set("abcdefghilno") | {"rloo-a", "rloo-b", "rloo-c"}


# Numbers from field reports (reference/field_reports.md, "Golden arithmetic vectors"; reference/golden.json).


def field_report(release: str, rows: int | None, *, world_size: int = 1, **fields: Any) -> Schedule:
    return plan_of_fields(fields, release, world_size=world_size, rows=rows)


def microbatches(schedule: Schedule) -> list[ExpectedMicroBatch]:
    return [e for e in expected_events(schedule) if isinstance(e, ExpectedMicroBatch)]


@pytest.mark.parametrize("release", ["0.16.1", "0.17.0", "1.16.0"])
def test_trl_3204_two_passes_over_8000_prompts_are_4000_updates(release: str) -> None:
    """The user expected 666. The batch counts completions: 4 x 2 x 3 / 6 = 4 prompts to an update."""
    fields = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_generations": 6}
    schedule = field_report(release, 8000, world_size=3, num_train_epochs=2, **fields)
    assert schedule.updates == schedule.lr_horizon == 4000
    assert schedule.data_epochs == 2


@pytest.mark.parametrize("release", ["0.16.1", "0.17.0", "1.16.0"])
def test_ms_swift_3912_reuse_doubles_the_updates_to_1320(release: str) -> None:
    fields = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_generations": 8}
    schedule = field_report(release, 7920, world_size=6, num_iterations=2, num_train_epochs=1, **fields)
    assert schedule.updates == 1320
    assert schedule.rows_dropped_per_epoch == 0
    assert schedule.data_epochs == 1
    assert schedule.lags == (0, 1)


@pytest.mark.parametrize("release", ["0.18.2", "0.24.0", "1.16.0"])
def test_ms_swift_9261_a_generation_of_32_gives_4_updates(release: str) -> None:
    """Measured there: 2, which was the bug."""
    schedule = field_report(
        release,
        320,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=8,
        steps_per_generation=32,
        num_generations=8,
    )
    assert schedule.updates_per_rollout == 4
    assert schedule.lags == (0, 1, 2, 3)
    assert schedule.old_logprob_source == "at_rollout"
    assert letters(expected_events(schedule)).startswith(" Go" + 4 * "llllllllS" + " Go")


@pytest.mark.parametrize("release", ["0.18.2", "0.24.0", "1.16.0"])
@pytest.mark.parametrize(("batch", "accumulation"), [(8, 1), (2, 4)])
def test_rapidfire_44_three_passes_over_128_rows_are_384_updates(release: str, batch: int, accumulation: int) -> None:
    schedule = field_report(
        release,
        128,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
        num_generations=8,
        num_train_epochs=3,
    )
    assert schedule.updates == 384
    assert schedule.samples_per_update == 8
    assert schedule.data_epochs == 3


@pytest.mark.parametrize(
    ("release", "source"), [("0.18.2", "detach"), ("0.22.2", "at_rollout"), ("1.16.0", "at_rollout")]
)
def test_trl_pr_3493_slices_after_an_update_inside_the_window_are_off_policy(release: str, source: str) -> None:
    """GA 4, steps_per_generation 3: micro-batches 4 and 5 come from weights one update old. The PR made TRL see it."""
    schedule = field_report(release, 36, gradient_accumulation_steps=4, steps_per_generation=3)
    assert [e.lag for e in microbatches(schedule)[:12]] == [0, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0]
    assert schedule.old_logprob_source == source
    assert schedule.updates_per_rollout == Fraction(3, 4)


@pytest.mark.parametrize("release", ["0.16.1", "0.17.0", "1.16.0"])
def test_cppo_5_two_iterations_are_twice_the_updates(release: str) -> None:
    """7473 rows (GSM8K), one prompt to an update: the run shows 14946 where the paper counts rollouts."""
    fields = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "num_generations": 4,
        "num_train_epochs": 1,
    }
    once, twice = (field_report(release, 7473, num_iterations=passes, **fields) for passes in (1, 2))
    assert (once.updates, twice.updates) == (7473, 14946)
    assert once.rollouts == twice.rollouts == 7473


def test_unsloth_3149_the_configuration_as_written_has_16_samples_to_an_update() -> None:
    """unsloth made the batch 16, hence 32."""
    fields = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_generations": 16}
    schedule = field_report("0.18.2", 100, **fields)
    assert schedule.samples_per_update == 16
    assert schedule.prompts_per_rollout == 1


def test_two_rollouts_for_one_update_is_legal() -> None:
    schedule = field_report("1.16.0", 40, gradient_accumulation_steps=8, steps_per_generation=4)
    assert schedule.updates_per_rollout == Fraction(1, 2)
    assert schedule.old_logprob_source == "detach"
    assert (schedule.lags, schedule.ratio_one_updates) == ((0,), (1,))


# The pattern of lags, and the letters themselves.


@pytest.mark.parametrize(
    ("arguments", "lags"),
    [
        ((2, 2, 1, 1), [[0, 0]]),
        ((4, 2, 1, 2), [[0, 0], [1, 1]]),
        ((3, 2, 1, 1), [[0, 0], [1, 0], [1, 1]]),
        ((3, 4, 1, 1), [[0, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0]]),
        ((2, 2, 2, 2), [[0, 0], [1, 1]]),
        ((2, 1, 2, 2), [[0], [0], [2], [2]]),
    ],
    ids=["on policy", "two passes", "c", "l", "0.16, two passes", "rollouts in different windows"],
)
def test_lag_patterns(arguments: tuple[int, int, int, int], lags: list[list[int]]) -> None:
    assert lag_pattern(*arguments) == lags


def test_letters_show_what_is_there() -> None:
    schedule = TIMELINES[0].schedule("0.16.1")
    events = scripted_run(schedule, applied=lambda index: index > 0)
    assert letters(events).startswith(" Gnrl Gnrlx Gnrl GnrlS")
    assert letters(events[:2]) == " Gnr"
    refreshed = field_report("1.16.0", 36, gradient_accumulation_steps=2, num_iterations=2, max_steps=2)
    observed = scripted_run(refreshed, measured=False)
    assert letters(observed) == " GollSllS"
    assert letters(observed[2:]) == "ollSllS"
    assert letters([msgspec.structs.replace(observed[1], purpose="evaluation")]) == ""
    assert expand([(" GollS", 2), ("l", 1)]) == " GollS GollSl"
