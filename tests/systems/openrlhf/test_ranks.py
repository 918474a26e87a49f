"""OpenRLHF with two ranks under DeepSpeed: healthy runs are silent, and each fault of a rank is named.

Most is trained in one launch without Ray (`train_ranks.py`): OpenRLHF's own trainer of the policy, with ZeRO-1, 2 and 3, an offloaded
optimizer and adapters. A launch with all of OpenRLHF's processes is a variant of those of `test_clean_runs.py`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.record.events import FactsRead, GradientParts, Measured
from tests.detection.outcomes import Clean, note
from tests.reports import unproved
from tests.systems.openrlhf import rank_faults
from tests.systems.openrlhf.audited import alarms
from tests.systems.openrlhf.faults import FAULTS
from tests.systems.openrlhf.launch import ENGINE_LOG_PROBS, Assets, reinforce
from tests.systems.openrlhf.ranks_launch import reports
from tests.systems.openrlhf.test_clean_runs import check, clean
from tests.systems.openrlhf.train_ranks import Case

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.judge.report import Report

OFFLOAD: Mapping[str, Any] = {"ds.adam_offload": True}
LORA: Mapping[str, Any] = {"ds.lora.rank": 4}
DYNAMIC: Mapping[str, Any] = {
    "train.dynamic_batch_enable": True, "train.max_tokens_per_gpu": 20, "rollout.max_tokens_per_gpu": 20,
}  # fmt: skip
"""Micro-batches of two samples."""
HEALTHY = (
    Case("zero1", 1),
    Case("zero2"),
    Case("zero2-lora", 2, dict(LORA)),
    Case("zero3", 3),
    # These come last: from the first of them on torch's Adam is used, which needs no compiler.
    Case("zero2-offload", 2, dict(OFFLOAD)),
    Case("zero3-offload", 3, dict(OFFLOAD)),
    Case("zero3-lora", 3, dict(LORA)),
    Case("zero3-dynamic", 3, dict(DYNAMIC)),
)
AVERAGED: Mapping[str, Any] = {"train.enable_ema": True, "train.ema_beta": 0.5}
AVERAGES = (Case("zero2-averaged", 2, dict(AVERAGED)), Case("zero3-averaged", 3, dict(AVERAGED)))
LOSING = (Case("zero1-dynamic", 1, dict(DYNAMIC)), Case("zero2-dynamic", 2, dict(DYNAMIC)))
"""OpenRLHF's own mistake: an update is made of its last micro-batch."""
ELSEWHERE = {
    2: {fault.__name__ for fault in rank_faults.OF_ZERO_3},
    3: {fault.__name__ for fault in rank_faults.OF_ZERO_2},
}
PLACES = {
    stage: {name: 2 * place for place, name in enumerate(of for of in rank_faults.NAMES if of not in ELSEWHERE[stage])}
    for stage in (2, 3)
}
"""Stage -> fault -> rollout: each has one of its own, and the rollout after it is healthy."""
CERTAIN: Mapping[str, Any] = {"rollout.temperature": 0.1}
"""A model at random is so unsure that its log-probs hardly differ between temperatures near 1."""
FAULTY = tuple(Case(f"faults{stage}", stage, dict(CERTAIN), of, 2 * len(of)) for stage, of in PLACES.items())
NOT_LOADED = tuple(
    Case(f"not-loaded{stage}", stage, faults=dict.fromkeys(rank_faults.OF_WHOLE_RUNS, 0)) for stage in PLACES
)
EACH = [(stage, name) for stage, of in PLACES.items() for name in of]
UPDATES = 2
"""Updates of the policy on each rollout."""

JOINED = ("RLS811", "RLS812", "RLS419")
COMPARED = {
    *("RLS203", "RLS210", "RLS301", "RLS305", "RLS314", "RLS401", "RLS404", "RLS423", "RLS602", "RLS605"),
    "RLS703",
    *("RLS801", "RLS802", "RLS804", "RLS805", "RLS806", "RLS807", "RLS808", "RLS811", "RLS812", "RLS901", "RLS902"),
}
"""Rules that have something to compare in each healthy run."""
OF_CONTROLLER = {"RLS101", "RLS306", "RLS516", "RLS517"}
"""Rules of what a controller does, which is left out here."""


@pytest.fixture(scope="module")
def trained(extensions: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    """What is said of each case."""
    return reports(tmp_path_factory.mktemp("ranks"), [*FAULTY, *NOT_LOADED, *AVERAGES, *HEALTHY, *LOSING], extensions)


@pytest.mark.parametrize("case", HEALTHY, ids=lambda case: case.name)
def test_a_healthy_run_is_silent(case: Case, trained: dict[str, Report]) -> None:
    report = trained[case.name]
    found = alarms(report)
    note(Clean(framework="OpenRLHF", alarms=tuple(finding.code for finding in found)))
    assert [str(finding) for finding in found] == []
    assert (report.verdict, report.counts.updates) == ("PASS", 6)
    passed = {outcome.code for outcome in report.rules if outcome.verdict == "PASS"}
    # No rank holds whole weights with ZeRO-3; its buffers are there.
    assert COMPARED | {"RLS419"} <= passed, {code: report.not_evaluated.get(code) for code in COMPARED - passed}
    stage = next(of for of in ("ZeRO-1", "ZeRO-2", "ZeRO-3") if of.endswith(str(case.stage)))
    for deployment in (
        stage,
        *(["offload"] if "offload" in case.name else []),
        *(["LoRA"] if "lora" in case.name else []),
    ):
        assert unproved(passed | OF_CONTROLLER, "openrlhf", deployment) == set()


def test_averaged_weights_are_compared_with_their_formula(trained: dict[str, Report]) -> None:
    two, three = (trained[case.name] for case in AVERAGES)
    assert [str(finding) for finding in alarms(two)] == []
    assert next(of.verdict for of in two.rules if of.code == "RLS703") == "PASS"
    # OpenRLHF writes them into gathered weights, which ZeRO-3 gives back without the change.
    (found,) = alarms(three)
    assert (found.code, found.observed) == ("RLS703", "other moving average of the weights")
    assert found.deviation == "openrlhf-average-stands-still"


@pytest.mark.parametrize("case", LOSING, ids=lambda case: case.name)
def test_dynamic_batches_that_lose_micro_batches_are_found(case: Case, trained: dict[str, Report]) -> None:
    (found,) = alarms(trained[case.name])
    assert (found.code, found.where.update, found.occurrences) == ("RLS811", 0, 6)
    assert "micro-batch 0 of 2 are missing, of all ranks" in found.observed


@pytest.mark.parametrize(("stage", "name"), EACH)
def test_a_fault_of_a_rank_is_named_with_its_rollout(stage: int, name: str, trained: dict[str, Report]) -> None:
    fault, at = FAULTS[name], PLACES[stage][name]
    found = [of for of in trained[f"faults{stage}"].findings if of.code == fault.code]
    here = [of for of in found if at in (of.where.rollout, *of.rollouts)]
    assert here, [str(of) for of in found]
    said = [f"{of.observed} rank {of.where.rank}, {of.why}" for of in here]
    assert any(re.search(fault.cause, of) for of in said), said
    updates = [of.where.update for of in here if of.where.rollout == at and of.where.update is not None]
    # A sync has the number of the update after those that it follows.
    last = UPDATES if name in ELSEWHERE[2] else UPDATES - 1
    assert all(0 <= update - UPDATES * at <= last for update in updates)


@pytest.mark.parametrize("case", NOT_LOADED, ids=lambda case: case.name)
def test_weights_that_were_not_loaded_are_named(case: Case, trained: dict[str, Report]) -> None:
    assert [found.code for found in alarms(trained[case.name])] == ["RLS423"]


@pytest.mark.parametrize("stage", PLACES)
def test_nothing_is_found_beside_the_faults(stage: int, trained: dict[str, Report]) -> None:
    report, rollouts = trained[f"faults{stage}"], set(PLACES[stage].values())
    assert report.verdict == "FAIL"
    assert not [str(of) for of in alarms(report) if not {of.where.rollout, *of.rollouts} <= rollouts]


@pytest.mark.thorough
@pytest.mark.parametrize("stage", [2, 3])
def test_all_processes_of_two_ranks_are_silent(stage: int, assets: Assets, extensions: Path, tmp_path: Path) -> None:
    flags: dict[str, Any] = reinforce(assets, tmp_path, rows=24) | ENGINE_LOG_PROBS
    flags |= {"actor.num_gpus_per_node": 2, "train.micro_batch_size": 2, "ds.zero_stage": stage}
    flags |= {"algo.advantage.estimator": "gae", "critic.num_gpus_per_node": 2}
    run = clean(flags, tmp_path, extensions=extensions)
    check(run, rollouts=3, updates=6, critic_updates=6, weight_syncs=3)
    outcomes = {outcome.code: outcome for outcome in run.report.rules}
    compared = (*JOINED, "RLS314", "RLS415", "RLS416", "RLS820")
    assert {code: outcomes[code].verdict for code in compared} == dict.fromkeys(compared, "PASS")
    events = [event for process in ("rank0", "critic0") for event in run.record(process)]
    assert {event.role for event in events if isinstance(event, GradientParts)} == {"policy", "critic"}
    facts = [event.facts for event in events if isinstance(event, FactsRead)]
    assert {"policy_loaded": "as saved", "critic_loaded": "as saved"}.items() <= {
        name: of for each in facts for name, of in each.items()
    }.items()
    measured = [of for event in events if isinstance(event, Measured) for of in event.microbatches]
    assert {of.clean_of for of in measured if of.role == "critic" and of.clean_gap is not None} == {"the values"}
