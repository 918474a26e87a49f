"""The numbers for trackers: a short report of the run at any moment."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.report import Counts, LagValues, Summary
from rlstep_hooks.observe.logged import with_metrics
from rlstep_hooks.record.events import Rollout
from rlstep_hooks.show.scalars import SWITCH, asked, scalars
from tests.scripted import Case, cases, make_plan, scripted_run
from tests.scripted_phases import Live, PhaseCase, phase_cases, scripted_phases

if TYPE_CHECKING:
    from rlstep_hooks.planning.finding import Verdict

ALL = Summary(
    verdict="PASS",
    problems=2,
    counts=Counts(rollouts=3, updates=6),
    lags=[
        LagValues(lag=0, microbatches=4, max_abs_log_ratio=0.25, mean_abs_log_ratio=0.1),
        LagValues(lag=1, microbatches=4, max_abs_log_ratio=0.5, mean_abs_log_ratio=0.1),
    ],
    age=1,
)


def test_names_and_values() -> None:
    assert scalars(ALL) == {
        "rlstep/rollouts": 3,
        "rlstep/updates": 6,
        "rlstep/lag_max": 1,
        "rlstep/log_ratio_max_lag_0": 0.25,
        "rlstep/weight_version_age": 1,
        "rlstep/findings": 2,
        "rlstep/verdict": 1,
    }


@pytest.mark.parametrize(("verdict", "value"), [("PASS", 1), ("FAIL", 0), ("NOT_EVALUATED", -1)])
def test_the_verdict_has_three_values(verdict: Verdict, value: int) -> None:
    assert scalars(Summary(verdict=verdict))["rlstep/verdict"] == value


def test_what_is_not_known_has_no_entry() -> None:
    assert set(scalars(Judge().summary())) == {"rlstep/rollouts", "rlstep/updates", "rlstep/findings", "rlstep/verdict"}
    infinite = LagValues(lag=0, microbatches=1, max_abs_log_ratio=math.inf, mean_abs_log_ratio=math.inf)
    found = scalars(msgspec.structs.replace(ALL, lags=[infinite], age=None))
    assert "rlstep/log_ratio_max_lag_0" not in found, "some trackers write JSON"
    assert "rlstep/weight_version_age" not in found
    assert found["rlstep/lag_max"] == 0


def test_only_zero_switches_them_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    assert asked()
    monkeypatch.setenv(SWITCH, "1")
    assert asked()
    monkeypatch.setenv(SWITCH, "0")
    assert not asked()


@given(cases(), st.data())
def test_the_summary_is_the_report_in_short(case: Case, data: st.DataObject) -> None:
    events = scripted_run(case.schedule)
    index = data.draw(st.integers(1, len(events) - 2))
    times = data.draw(st.sampled_from([0, 1, 2]))
    judge = Judge()
    for event in [*events[:index], *[events[index]] * times, *events[index + 1 :]]:
        judge.observe(event)
        assert judge.summary() == Summary.of(judge.report(), age=judge.age)


@given(phase_cases())
def test_a_controlled_run_has_one_too(case: PhaseCase) -> None:
    run = Live().play(scripted_phases(case)).run
    assert run.summary() == Summary.of(run.report(), age=run.age)


@pytest.mark.parametrize(("sampler", "age"), [(None, None), (-1, None), (2, 1), (3, 0)])
def test_the_age_of_the_latest_rollout(sampler: int | None, age: int | None) -> None:
    judge = Judge()
    judge.observe(scripted_run(make_plan(max_steps=8))[0])
    judge.observe(Rollout(index=0, samples=8, policy_version=3, sampler_version=sampler))
    assert judge.age == age
    judge.observe(Rollout(index=1, samples=8, policy_version=9, sampler_version=0, purpose="evaluation"))
    assert judge.age == age, "an evaluation trains nothing"


ADDED = {"rlstep/verdict": 1, "loss": 9}


@pytest.mark.parametrize(
    ("args", "kwargs"), [((5, {"loss": 2}), {}), ((5,), {"logs": {"loss": 2}}), ((), {"logs": {"loss": 2}, "step": 5})]
)
def test_logs_get_more_and_keep_their_own(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    def log(step: int, logs: dict[str, float]) -> tuple[int, dict[str, float]]:
        return step, logs

    before = copy.deepcopy((args, kwargs))
    changed, named = with_metrics(args, kwargs, ADDED, name="logs", position=1)
    assert log(*changed, **named) == (5, {"loss": 2, "rlstep/verdict": 1})
    assert (args, kwargs) == before, "the dictionary given is not touched"


@pytest.mark.parametrize("args", [(), (5,), (5, None), (5, "text")])
def test_a_call_without_logs_stays(args: tuple[Any, ...]) -> None:
    assert with_metrics(args, {}, ADDED, name="logs", position=1) == (args, {})
