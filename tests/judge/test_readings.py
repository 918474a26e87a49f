"""What a run measured: summed up in constant memory, by roles and purposes, whatever a record lacks."""

from __future__ import annotations

import math

import msgspec
import pytest

from rlstep_hooks.judge.measures import measures_of
from rlstep_hooks.judge.readings import ENDS, Readings, RunningReadings
from rlstep_hooks.judge.report import Report
from rlstep_hooks.judge.settings import RunSettings
from rlstep_hooks.record.events import MicroBatch, MicroBatchValues, Rollout, RolloutValues, Update, UpdateValues
from tests.scripted import make_plan


def test_a_series_has_ends_extremes_and_a_mean() -> None:
    running = RunningReadings()
    for index in range(100):
        running.add_update(Update(index=index, version=index + 1, microbatches=1, learning_rate=float(index)))
    rate = running.result().learning_rate
    assert rate is not None
    assert (rate.count, rate.smallest, rate.largest, rate.mean) == (100, 0.0, 99.0, 49.5)
    assert rate.first == pytest.approx((ENDS - 1) / 2)
    assert rate.last == pytest.approx(99 - (ENDS - 1) / 2)
    assert rate.trend


def test_what_is_no_number_is_left_out() -> None:
    running = RunningReadings()
    running.add_rollout_values(RolloutValues(index=0, reward_mean=math.inf, reward_deviation=math.nan))
    running.add_update(Update(index=0, version=0, microbatches=1, applied=False, learning_rate=0.5))
    assert running.result() == Readings()


def test_updates_tell_the_norm_before_the_clip() -> None:
    running = RunningReadings()
    for factor in (0.1, 1.0):
        values = UpdateValues(
            index=0, probed=1, changed=1, with_gradient=1, visible=1, gradient_norm=1.0, gradient_limit=1.0,
            gradient_factor=factor,
        )  # fmt: skip
        running.add_update_values(values)
    found = running.result()
    assert found.gradient_before_clip is not None
    assert (found.gradient_before_clip.smallest, found.gradient_before_clip.largest) == (1.0, 10.0)
    assert (found.clipped_updates, found.gradient_limit) == (1, 1.0)


def test_rollouts_and_micro_batches_tell_the_rest() -> None:
    running = RunningReadings()
    running.add_rollout(Rollout(index=0, samples=4, policy_version=5, sampler_version=3))
    running.add_rollout(Rollout(index=1, samples=4, policy_version=5, sampler_version=-1))
    running.add_rollout_values(RolloutValues(index=0, groups=4, equal_groups=3, sampler_gap_mean=0.5))
    values = MicroBatchValues(index=0, tokens=40, entropy=1.5, reference_kl=0.25, mean_abs_log_prob=1.25)
    running.add_microbatch(values, MicroBatch(index=0, samples=4, policy_version=0))
    found = running.result()
    means = {name: getattr(found, name).mean for name in ("age", "engine_gap", "entropy", "reference_kl", "tokens")}
    assert means == {"age": 2, "engine_gap": 0.5, "entropy": 1.5, "reference_kl": 0.25, "tokens": 10}
    assert (found.groups, found.equal_groups) == (4, 3)


def test_what_a_record_lacks_is_said() -> None:
    measures = measures_of(Report(verdict="PASS", schedule=make_plan(beta=0.04)), RunSettings(None, {}))
    assert not measures.held
    assert {"|log ratio|", "learning rate", "entropy", "reward", "KL to reference"} <= set(measures.missing)


def test_a_run_without_a_reference_has_no_kl() -> None:
    measures = measures_of(Report(verdict="PASS", schedule=make_plan(beta=0.0)), RunSettings(None, {}))
    assert [each.words for each in measures.held] == ["not computed: this run has no reference"]


@pytest.mark.parametrize("value", [10**400, math.nan, math.inf, True, "0.1", None, [1]])
def test_a_setting_may_be_anything(value: object) -> None:
    plan = msgspec.structs.replace(make_plan(beta=0.0), settings={"beta": value, "kind": value})
    settings = RunSettings(plan, {"kl_coefficient": "beta", "rate_schedule": "kind"})
    assert settings.number("kl_coefficient") is None
    assert settings.written("kl_coefficient") == ""
    assert isinstance(settings.text("rate_schedule"), str)
    assert measures_of(Report(verdict="PASS", schedule=plan), settings).held
