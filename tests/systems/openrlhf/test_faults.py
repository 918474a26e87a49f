"""Every fault of the corpus, in a real run of OpenRLHF: found by the rule that names it, at the rollout where it begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.record.events import RunEnded
from tests.detection.outcomes import Detected, note
from tests.systems.openrlhf import rank_faults
from tests.systems.openrlhf.audited import alarms, shown
from tests.systems.openrlhf.fault_launches import LAUNCHES, found_at, train
from tests.systems.openrlhf.faults import FAULTS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.systems.audited import Audited
    from tests.systems.openrlhf.launch import Assets


EACH_TIME = frozenset({"policy", "groups"})
"""Launches that are made each time, with most of the hooks; `nox -s thorough` makes the others."""


def chosen(launch: str, *parameters: str) -> Any:
    """The parameters of a test for one launch, marked where the launch is not made each time."""
    return pytest.param(launch, *parameters, marks=[] if launch in EACH_TIME else [pytest.mark.thorough])


CASES = [chosen(launch, name) for launch, made in LAUNCHES.items() for name in made.faults]


class Runs:
    """The runs with faults; each is made once, and once more where what it drew hid a fault.

    Args:
        assets: The model and the rows.
        extensions: Where DeepSpeed keeps what it compiles.
        folders: Makes the folder of a run.
    """

    def __init__(self, assets: Assets, extensions: Path, folders: pytest.TempPathFactory) -> None:
        self._assets = assets
        self._extensions = extensions
        self._folders = folders
        self._made: dict[tuple[str, int], Audited] = {}

    def __call__(self, name: str, draw: int = 0) -> Audited:
        """The run of a launch; `draw` counts runs of the same launch."""
        if (name, draw) not in self._made:
            folder = self._folders.mktemp(name)
            self._made[name, draw] = train(LAUNCHES[name], folder, self._assets, self._extensions)
        return self._made[name, draw]


@pytest.fixture(scope="module")
def run_of(assets: Assets, extensions: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(assets, extensions, tmp_path_factory)


@pytest.mark.parametrize(("launch", "name"), CASES)
def test_fault_is_found_by_its_rule_at_its_rollout(launch: str, name: str, run_of: Runs) -> None:
    """Ray hands answers over in the order in which they are ready, so each run draws others. A fault that lasts one rollout may meet
    answers that hide it: equal rewards, or answers that are all as long. It has to be found in one of two runs."""
    run, fault = run_of(launch), FAULTS[name]
    if not found_at(run, LAUNCHES[launch], name):
        run = run_of(launch, draw=1)
    found = found_at(run, LAUNCHES[launch], name)
    shows_in = fault.shows_in(LAUNCHES[launch].faults[name])
    delay = run.delay(fault.code, min(found, default=shows_in.start))
    outcome = Detected(
        framework="OpenRLHF",
        fault=name,
        report=fault.report,
        code=fault.code,
        found=bool(found),
        delay=delay,
        early=0,
    )
    note(outcome)
    assert found, [str(finding) for finding in alarms(run.report)]
    said = [f for f in alarms(run.report) if f.code == fault.code and found & {f.where.rollout, *f.rollouts}]
    assert any(fault.cause in f"{f.expected} {f.observed} {f.why}" for f in said), [str(finding) for finding in said]


@pytest.mark.parametrize("launch", map(chosen, LAUNCHES))
def test_nothing_is_found_before_and_beside_the_faults(launch: str, run_of: Runs) -> None:
    run, made = run_of(launch), LAUNCHES[launch]
    assert run.report.verdict == "FAIL"
    faulty = {rollout for name, at in made.faults.items() for rollout in (at, *FAULTS[name].shows_in(at))}
    elsewhere = [
        str(found)
        for found in alarms(run.report)
        if found.where.rollout is not None and found.where.rollout not in faulty and found.code not in made.true_beside
    ]
    assert not elsewhere


@pytest.mark.xdist_group("openrlhf/test_faults policy")
def test_the_tracker_shows_old_weights(run_of: Runs) -> None:
    numbers, _ = shown(run_of("policy").outcome)
    faults = LAUNCHES["policy"].faults
    ages = [value for _, value in numbers["weight_version_age"]]
    assert [rollout for rollout, age in enumerate(ages) if age] == [
        faults[name] + 1 for name in ("engine_keeps_old_weights", "sync_left_out")
    ]
    verdicts = [value for _, value in numbers["verdict"]]
    first = faults[
        "engine_keeps_old_weights"
    ]  # found at the sync itself, before the tracker gets the numbers of its rollout
    assert verdicts == [1] * first + [0] * (30 - first), "nothing is logged of the two that are discarded"


@pytest.mark.xdist_group("openrlhf/test_faults policy")
def test_faults_do_not_end_training(run_of: Runs) -> None:
    run = run_of("policy")
    assert run.outcome.status == 0, run.outcome.tail
    assert run.report.counts.rollouts == 32


@pytest.mark.xdist_group("openrlhf/test_faults stop")
@pytest.mark.thorough
def test_stop_saves_and_ends_training_and_says_so(run_of: Runs) -> None:
    run = run_of("stop")
    assert run.outcome.status == 1, run.outcome.tail
    assert "rlstep: on_fail=stop ended training after " in run.outcome.output
    assert run.report.stopped_by
    assert (run.outcome.folder / "final" / "model.safetensors").exists(), "what the run has is saved"
    assert run.report.counts.rollouts == 2, "the one with the fault is the last"
    (ended,) = [event for event in run.record("controller") if isinstance(event, RunEnded)]
    assert (ended.status, ended.stopped) == ("completed", True)
    assert "RLS206" not in {finding.code for finding in alarms(run.report)}, "an early end by wish"


@pytest.mark.xdist_group("openrlhf/test_faults raise")
@pytest.mark.thorough
def test_raise_ends_training_with_the_finding(run_of: Runs) -> None:
    run = run_of("raise")
    assert run.outcome.status == 1
    assert "StepAuditError" in run.outcome.output
    assert run.report.counts.rollouts == 3, "the fault shows in the rollout after it"


def test_every_fault_is_made_and_described() -> None:
    elsewhere = {"checkpoint_not_loaded", "moments_not_loaded", "engine_log_probs_off_both_ways"}
    elsewhere |= {*rank_faults.NAMES, *rank_faults.OF_WHOLE_RUNS}
    made = {name for launch in LAUNCHES.values() for name in launch.faults}
    assert made | elsewhere == set(FAULTS), "these are in test_resume.py, test_tokens_apart.py and test_ranks.py"
    assert all(fault.apply.__doc__ and fault.report for fault in FAULTS.values())


@pytest.mark.xdist_group("openrlhf/test_faults groups")
def test_an_engine_that_lacks_a_layer_is_said_to_have_the_weights_of_no_sync(run_of: Runs) -> None:
    run = run_of("groups")
    at = LAUNCHES["groups"].faults["sync_without_a_layer"] + 1
    (unsent,) = [f for f in alarms(run.report) if f.code == "RLS402" and f.where.rollout == at]
    assert "weights are those of no sync" in unsent.observed


@pytest.mark.xdist_group("openrlhf/test_faults raise")
@pytest.mark.thorough
def test_a_distance_that_top_p_explains_is_named_after_it(run_of: Runs) -> None:
    (found,) = [f for f in alarms(run_of("raise").report) if f.code == "RLS403"]
    assert "which is -ln 0.9" in found.observed
    assert found.severity == "warning"
