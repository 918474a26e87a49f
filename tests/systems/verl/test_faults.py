"""Every fault of the corpus, in a real run of verl: found by the rule that names it, at the rollout where it begins."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.record.events import RunEnded
from tests.detection.outcomes import Detected, note
from tests.systems.verl.audited import alarms, shown
from tests.systems.verl.fault_launches import LAUNCHES, named, train
from tests.systems.verl.faults import FAULTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.systems.audited import Audited

EACH_TIME = frozenset({"policy", "samples", "ranks"})
"""Launches that are made each time, with most of the hooks; `nox -s thorough` makes the others."""
AT_UPDATES = [name for name in LAUNCHES["ranks"].faults if FAULTS[name].code != "RLS314"]
"""Faults of two trainers whose findings name an update: values are scored once for a rollout."""


def chosen(launch: str, *parameters: str) -> Any:
    """The parameters of a test for one launch, marked where the launch is not made each time."""
    return pytest.param(launch, *parameters, marks=[] if launch in EACH_TIME else [pytest.mark.thorough])


CASES = [chosen(launch, name) for launch, made in LAUNCHES.items() for name in made.faults]


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Audited]:
    """The runs with faults; each is made once."""
    return cache(lambda name: train(LAUNCHES[name], tmp_path_factory.mktemp(name)))


@pytest.mark.parametrize(("launch", "name"), CASES)
def test_fault_is_found_by_its_rule_at_its_rollout(launch: str, name: str, run_of: Callable[[str], Audited]) -> None:
    run, fault = run_of(launch), FAULTS[name]
    at = LAUNCHES[launch].faults[name] + fault.shows_after
    place = None if fault.whole_run else at
    found = place in named(run, fault)
    outcome = Detected(
        framework="verl",
        fault=name,
        report=fault.report,
        code=fault.code,
        found=found,
        delay=run.delay(fault.code, place),
        early=0,
    )
    note(outcome)
    assert found, [str(finding) for finding in alarms(run.report)]


@pytest.mark.xdist_group("verl/test_faults ranks")
@pytest.mark.parametrize("name", AT_UPDATES)
def test_a_fault_of_ranks_is_found_with_its_update(name: str, run_of: Callable[[str], Audited]) -> None:
    fault, at = FAULTS[name], LAUNCHES["ranks"].faults[name]
    found = [f for f in alarms(run_of("ranks").report) if f.code == fault.code and fault.variant in f.observed]
    # Where a rank has no signal in the first update of a rollout, the second one shows it first. A sync stands behind both.
    places = [f.where for f in found if f.where.rank == fault.rank and f.where.update is not None]
    assert any(at in (place.update // 2, place.rollout) for place in places)


@pytest.mark.parametrize("launch", map(chosen, LAUNCHES))
def test_nothing_is_found_before_and_beside_the_faults(launch: str, run_of: Callable[[str], Audited]) -> None:
    run, made = run_of(launch), LAUNCHES[launch]
    assert run.report.verdict == "FAIL"
    faulty = {at + offset for name, at in made.faults.items() for offset in (0, FAULTS[name].shows_after)}
    # An engine to which a sync never came counts its later syncs otherwise than the trainer: a known limit of RLS415.
    known = made.lasting | ({"RLS415"} if "engine_keeps_old_weights" in made.faults else set())
    of_rollouts = [f for f in alarms(run.report) if f.where.rollout is not None and f.code not in known]
    elsewhere = [str(f) for f in of_rollouts if f.where.rollout not in faulty]
    assert not elsewhere


@pytest.mark.xdist_group("verl/test_faults copies")
@pytest.mark.thorough
def test_the_clip_is_that_of_the_model_whatever_the_optimizer_holds(run_of: Callable[[str], Audited]) -> None:
    report = run_of("copies").report
    # What is left of the updates before is added to the gradients of each, since nothing clears it; the clip explains the rest.
    altered = [finding for finding in report.findings if finding.code == "RLS810"]
    assert {finding.explained_by for finding in altered} <= {"RLS803"}
    assert not [finding for finding in altered if "the clip does not explain it" in finding.why]
    assert next(rule for rule in report.rules if rule.code == "RLS810").checks
    assert next(rule for rule in report.rules if rule.code == "RLS808").verdict == "PASS"


@pytest.mark.parametrize("launch", map(chosen, ["policy", "critic"]))
def test_the_tracker_shows_the_first_fault(launch: str, run_of: Callable[[str], Audited]) -> None:
    tracked = shown(run_of(launch).outcome)
    verdicts = [value for _, value in tracked["verdict"]]
    assert len(verdicts) == LAUNCHES[launch].rows // 8
    # A sync that comes before an update is told apart from a dropped update by what follows it, which is the next rollout.
    assert verdicts[0] == 1
    assert set(verdicts[2:]) == {0}
    found = [value for _, value in tracked["findings"]]
    assert found == sorted(found)
    assert found[0] == 0 < found[2] < found[-1]


@pytest.mark.xdist_group("verl/test_faults critic")
@pytest.mark.thorough
def test_the_tracker_shows_old_weights(run_of: Callable[[str], Audited]) -> None:
    ages = [value for _, value in shown(run_of("critic").outcome)["weight_version_age"]]
    stale = LAUNCHES["critic"].faults["engine_keeps_old_weights"] + FAULTS["engine_keeps_old_weights"].shows_after
    assert [rollout for rollout, age in enumerate(ages) if age] == [stale]
    assert ages[stale] == 4, "the updates of one rollout"


@pytest.mark.parametrize("launch", map(chosen, ["policy", "critic"]))
def test_faults_do_not_end_training(launch: str, run_of: Callable[[str], Audited]) -> None:
    run = run_of(launch)
    assert run.outcome.status == 0, run.outcome.tail
    assert run.report.counts.rollouts == LAUNCHES[launch].rows // 8


@pytest.mark.xdist_group("verl/test_faults raise")
@pytest.mark.thorough
def test_raise_ends_training_with_the_finding(run_of: Callable[[str], Audited]) -> None:
    run = run_of("raise")
    assert run.outcome.status == 1
    assert "StepAuditError" in run.outcome.output
    assert "RLS210" in run.outcome.output
    assert run.report.counts.rollouts == 2, "the one with the fault is the last"
    assert {finding.where.rank for finding in alarms(run.report) if finding.code == "RLS210"} == {1}
    assert "RLS902" in {finding.code for finding in alarms(run.report)}, "the two trainers went apart"


@pytest.mark.xdist_group("verl/test_faults stop")
@pytest.mark.thorough
def test_stop_ends_training_and_says_so(run_of: Callable[[str], Audited]) -> None:
    run = run_of("stop")
    assert run.outcome.status != 0, "a run that the audit ended does not end as if all were well"
    assert "rlstep: on_fail=stop ended training after " in run.outcome.output
    assert run.report.counts.rollouts == 2
    (ended,) = [event for event in run.record("controller") if isinstance(event, RunEnded)]
    assert (ended.status, ended.stopped) == ("completed", True)
    assert ended.stopped_by == run.report.stopped_by != ""
    assert "RLS206" not in {finding.code for finding in alarms(run.report)}, "an early end by wish"


@pytest.mark.xdist_group("verl/test_faults stop")
@pytest.mark.thorough
def test_a_missing_worker_is_told_with_what_to_do(run_of: Callable[[str], Audited]) -> None:
    (finding,) = [finding for finding in alarms(run_of("stop").report) if finding.code == "RLS901"]
    assert "trainer 1" in finding.observed
    assert "ray_kwargs.ray_init.runtime_env.env_vars.RLSTEP_DIR" in finding.fix


def test_every_fault_is_made_and_described() -> None:
    elsewhere = {"rejection_left_out", "rejection_of_other_samples", "importance_weights_left_out"}  # test_separate.py
    assert {name for made in LAUNCHES.values() for name in made.faults} | elsewhere == set(FAULTS)
    assert all(fault.apply.__doc__ and fault.report for fault in FAULTS.values())
