"""TRL's GRPO under a real DeepSpeed engine, two processes (gloo, CPU): a healthy run of each stage is silent, and each fault is named.

One launch trains all cases one after the other, so that DeepSpeed is started once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import pytest

from rlstep_hooks.systems.engine.links import Deployment
from tests.faults.fault import WHOLE_RUN
from tests.reports import unproved
from tests.systems.trl_ranks.cases import Case, Outcome
from tests.systems.trl_ranks.corpus import is_at, settings_of
from tests.systems.trl_ranks.launching import outcomes
from tests.systems.trl_ranks.zero_faults import ZERO_FAULTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.faults.fault import Fault

HEALTHY = (
    "zero0", "zero1", "zero1-offload", "zero2", "zero2-bf16", "zero2-offload", "zero2-bf16-offload",
    "zero3", "zero3-bf16", "zero3-offload",
)  # fmt: skip
BEGINS_AT_STEP_1 = "zero0-bf16"
SETTINGS: Mapping[str, Any] = {
    "rows": 12, "gradient_accumulation_steps": 2, "steps_per_generation": 4, "num_iterations": 2, "num_train_epochs": 1,
}  # fmt: skip
STAGES = (2, 3)
"""Those with faults."""


def case_of(name: str) -> Case:
    """A healthy run; its name has words for the stage, `offload` and `bf16`."""
    words = name.split("-")
    sharding = {"stage": int(words[0][4:]), "offload": "offload" in words}
    return Case(name=name, settings={**SETTINGS, **({"bf16": True} if "bf16" in words else {})}, sharding=sharding)


def fault_of(fault: Fault, stage: int) -> Case:
    """A run with a fault."""
    return Case(name=f"{fault.name}-{stage}", fault=fault.name, settings=settings_of(fault), sharding={"stage": stage})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Outcome]]:
    """What both ranks say of each case."""
    healthy = [case_of(name) for name in (*HEALTHY, BEGINS_AT_STEP_1)]
    faulty = [fault_of(fault, stage) for stage in STAGES for fault in ZERO_FAULTS]
    return outcomes(tmp_path_factory.mktemp("deepspeed"), "zero2", healthy + faulty)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_is_silent(name: str, trained: dict[str, list[Outcome]]) -> None:
    for of in trained[name]:
        assert (of.error, of.found, of.verdict, of.updates) == ("", [], "PASS", 4)
        passed = {code for code, (verdict, _) in of.rules.items() if verdict == "PASS"}
        stage = next(each for each in get_args(Deployment) if each.replace("-", "").lower() == name.partition("-")[0])
        assert unproved(passed, "trl", stage) == set()
        if "offload" in name:
            assert unproved(passed, "trl", "offload") == set()
        # Two rollouts' worth of lags: the ratio rules had something to compare, at lag 0 and above.
        assert passed >= {
            "RLS203",
            "RLS210",
            "RLS301",
            "RLS307",
            "RLS401",
            "RLS404",
            "RLS602",
            "RLS801",
            "RLS806",
            "RLS807",
        }
        assert not {"weights", "optimizer", "gradient", "reduction"} & set(of.not_evaluated)


def test_adam_that_begins_at_step_1_is_found(trained: dict[str, list[Outcome]]) -> None:
    for of in trained[BEGINS_AT_STEP_1]:
        [found] = of.found
        assert (of.verdict, found.code, found.severity, found.place.update) == ("FAIL", "RLS807", "error", 0)
        assert found.deviation == "deepspeed-adam-begins-at-step-1"


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("fault", ZERO_FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_named(fault: Fault, stage: int, trained: dict[str, list[Outcome]]) -> None:
    first = trained[f"{fault.name}-{stage}"][0]
    assert (first.error, first.verdict) == ("", "FAIL")
    named = [found for found in first.found if found.code == fault.code]
    assert named, first.found
    if fault.where != WHOLE_RUN:
        assert is_at(named[0].place, fault.where), named[0].place
