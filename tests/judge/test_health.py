"""Numbers far outside of what published runs have: said, with the source, and without a change of the verdict."""

from __future__ import annotations

import math
import random

import msgspec
import pytest

from rlstep_hooks.judge.health import FAR, USUAL_KL, health_of, least_kl
from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.readings import LagValues, Readings, Series
from rlstep_hooks.record.events import Measured
from tests.scripted import make_plan, scripted_run

PLAN = make_plan(iterations=2)


def lag(mean: float, most: float, clipped: float | None = None) -> LagValues:
    return LagValues(lag=1, microbatches=8, max_abs_log_ratio=most, mean_abs_log_ratio=mean, clipped=clipped)


def entropy(last: float) -> Series:
    return Series(count=99, first=3.0, last=last, smallest=last, largest=3.0, mean=1.0)


def quantities(lags: list[LagValues], readings: Readings | None = None) -> list[str]:
    return [line.quantity for line in health_of(lags, readings or Readings(), PLAN)]


def test_usual_numbers_are_silent() -> None:
    assert not quantities([lag(0.2, 3.0, 0.2)], Readings(entropy=entropy(0.3)))


def test_what_is_far_off_is_said_with_its_source() -> None:
    found = health_of([lag(1.9, 25.0, 0.35)], Readings(entropy=entropy(0.001)), PLAN)
    assert {line.quantity for line in found} == {"log ratio", "KL from the old policy", "entropy"}
    assert all(line.source.name and line.source.quote for line in found)
    assert [line.times for line in found] == sorted((line.times for line in found), reverse=True)
    assert any("35 % clipped" in line.words for line in found)


def test_log_ratios_of_sequences_have_no_bound_here() -> None:
    assert not quantities([lag(1.9, 25.0)], Readings(of_sequences=True))


def test_a_timestep_has_no_entropy_of_a_token() -> None:
    plan = msgspec.structs.replace(PLAN, step_unit="timestep")
    assert not health_of([], Readings(entropy=entropy(0.001)), plan)
    assert not health_of([], Readings(entropy=entropy(0.001)), None)


@pytest.mark.parametrize("scale", [0.01, 0.5, 3.0])
def test_the_least_kl_is_not_above_that_of_any_log_ratios(scale: float) -> None:
    """The bound that is compared is one that the real approximation cannot be below, whatever the signs."""
    drawn = random.Random(0)
    ratios = [drawn.gauss(0.0, scale) for _ in range(1000)]
    real = sum(math.exp(x) - 1 - x for x in ratios) / len(ratios)
    assert 0 < least_kl(sum(map(abs, ratios)) / len(ratios)) <= real


def test_the_limit_is_far_above_the_usual_value() -> None:
    assert least_kl(0.6) < FAR * USUAL_KL < least_kl(0.8)


def test_a_verdict_stays_as_it_is() -> None:
    def far(event: object) -> object:
        if not isinstance(event, Measured):
            return event
        changed = tuple(
            msgspec.structs.replace(values, max_abs_log_ratio=25.0, mean_abs_log_ratio=1.9)
            if values.max_abs_log_ratio
            else values
            for values in event.microbatches
        )
        return msgspec.structs.replace(event, microbatches=changed)

    judges = Judge(), Judge()
    for event in scripted_run(PLAN):
        judges[0].observe(event)
        judges[1].observe(far(event))  # type: ignore[arg-type]
    calm, report = (judge.report() for judge in judges)
    assert not calm.health
    assert [line.quantity for line in report.health] == ["KL from the old policy", "log ratio"]
    assert report.verdict == calm.verdict == "PASS"
    assert report.findings == calm.findings
    assert '"health": [' in report.to_json()
