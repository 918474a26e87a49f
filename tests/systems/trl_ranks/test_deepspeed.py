"""TRL's GRPO under a real DeepSpeed engine, two processes (gloo, CPU): a healthy run of each stage is silent, and each fault is named.

One launch trains all cases one after the other, so that DeepSpeed is started once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import pytest

from rlstep_hooks.systems.engine.links import Deployment
from tests.faults.fault import WHOLE_RUN
from tests.reports import OF_REFERENCES, unproved
from tests.systems.trl_ranks.cases import Case, Outcome
from tests.systems.trl_ranks.corpus import is_at, settings_of
from tests.systems.trl_ranks.launching import outcomes
from tests.systems.trl_ranks.rank_faults import COPIES, OF_CHECKPOINTS, OF_PARTS
from tests.systems.trl_ranks.zero_faults import DRIFT, OF_WHOLE_MODELS, OF_WHOLE_WEIGHTS, ZERO_FAULTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.faults.fault import Fault

HEALTHY = (
    "zero0", "zero1", "zero1-offload", "zero2", "zero2-bf16", "zero2-offload", "zero2-bf16-offload",
    "zero3", "zero3-bf16", "zero3-offload", "zero2-synced", "zero3-cut-synced", "zero2-resumed", "zero3-resumed",
    "zero1-resumed-elsewhere", "zero2-bf16-resumed-elsewhere", "zero2-offload-resumed-elsewhere", "zero3-resumed-elsewhere",
    "zero3-bf16-offload-resumed-elsewhere",
)  # fmt: skip
BEGINS_AT_STEP_1 = "zero0-bf16"
SETTINGS: Mapping[str, Any] = {
    "rows": 12, "gradient_accumulation_steps": 2, "steps_per_generation": 4, "num_iterations": 2, "num_train_epochs": 1,
}  # fmt: skip
SYNCED: Mapping[str, Any] = {
    "beta": 0.04, "sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 0.3,
}  # fmt: skip
"""With a reference that the policy is mixed into after every second update."""
RESUMED_AFTER = 2
"""Updates of the checkpoint that a resumed run goes on from."""
GATHERED: Mapping[str, Any] = {"stage3_gather_16bit_weights_on_model_save": True}
"""With the whole tensors in a checkpoint besides DeepSpeed's own files."""
STAGES = (2, 3)
"""Those with faults."""
NAMED = (*ZERO_FAULTS, *OF_CHECKPOINTS, *OF_PARTS, COPIES)
OTHER_MOMENTS = OF_CHECKPOINTS[0]


def case_of(name: str) -> Case:
    """A healthy run; its name has words for the stage, `offload`, `bf16`, `synced`, `resumed`, `elsewhere`, where the run before it has
    its records, and `cut`: no parameter stays whole."""
    words = name.split("-")
    sharding: dict[str, Any] = {"stage": int(words[0][4:]), "offload": "offload" in words}
    if "cut" in words:
        sharding["zero"] = {"stage3_param_persistence_threshold": 0}
    elif "resumed" in words:
        sharding["zero"] = GATHERED
    more = {"bf16": {"bf16": True}, "synced": SYNCED}
    settings = {name: value for word in words for name, value in more.get(word, {}).items()}
    resumes_after = RESUMED_AFTER if "resumed" in words else 0
    return Case(
        name=name,
        settings={**SETTINGS, **settings},
        sharding=sharding,
        resumes_after=resumes_after,
        records_elsewhere="elsewhere" in words,
    )


def fault_of(fault: Fault, stage: int, *, records_elsewhere: bool = False) -> Case:
    """A run with a fault."""
    resumes_after = RESUMED_AFTER if fault in (*OF_CHECKPOINTS, *OF_PARTS) else 0
    settings = settings_of(fault)
    return Case(
        name=f"{fault.name}-{stage}" + "-elsewhere" * records_elsewhere,
        fault=fault.name,
        settings=settings,
        sharding={"stage": stage, "zero": GATHERED if resumes_after else {}},
        resumes_after=resumes_after,
        records_elsewhere=records_elsewhere,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Outcome]]:
    """What both ranks say of each case."""
    healthy = [case_of(name) for name in (*HEALTHY, BEGINS_AT_STEP_1)]
    faulty = [fault_of(fault, stage) for stage in STAGES for fault in NAMED]
    faulty += [fault_of(OTHER_MOMENTS, stage, records_elsewhere=True) for stage in STAGES]
    faulty += [fault_of(fault, 2) for fault in (DRIFT, *OF_WHOLE_WEIGHTS, *OF_WHOLE_MODELS)]
    return outcomes(tmp_path_factory.mktemp("deepspeed"), "zero2", healthy + faulty)


def passed(of: Outcome) -> set[str]:
    """The rules that had something to compare, and nothing to find."""
    return {code for code, (verdict, _) in of.rules.items() if verdict == "PASS"}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_is_silent(name: str, trained: dict[str, list[Outcome]]) -> None:
    first, second = trained[name]
    if "resumed" in name:  # from a part of the plan, which has less to compare
        assert [(of.error, of.found, of.verdict) for of in (first, second)] == [("", [], "PASS")] * 2
        assert passed(first) >= {"RLS702", "RLS703", "RLS811", "RLS812", "RLS902"}
        return
    for of in (first, second):
        assert (of.error, of.found, of.verdict, of.updates) == ("", [], "PASS", 4)
        # Two rollouts' worth of lags: the ratio rules had something to compare, at lag 0 and above.
        assert passed(of) >= {
            "RLS203",
            "RLS210",
            "RLS301",
            "RLS307",
            "RLS401",
            "RLS404",
            "RLS602",
            "RLS801",
            "RLS805",
            "RLS806",
        }
        assert not {"weights", "optimizer", "gradient", "reduction"} & set(of.not_evaluated)
    # The report of rank 0 alone joins the records of all.
    stage = next(each for each in get_args(Deployment) if each.replace("-", "").lower() == name.partition("-")[0])
    # RLS412 looks at rollouts after an update, and the run has one rollout.
    assert unproved(passed(first) | OF_REFERENCES | {"RLS412"}, "trl", stage) == set()
    assert "offload" not in name or unproved(passed(first), "trl", "offload") == set()
    assert passed(first) >= {"RLS811", "RLS812", "RLS419"}
    assert "synced" not in name or "RLS411" in passed(first)
    assert "RLS314" in passed(first)


def test_adam_that_begins_at_step_1_is_found(trained: dict[str, list[Outcome]]) -> None:
    for of in trained[BEGINS_AT_STEP_1]:
        [found] = [found for found in of.found if found.code != "RLS119"]
        [warned] = [found for found in of.found if found.code == "RLS119"]
        assert (warned.severity, "Adam begins at step 1" in warned.text) == ("warning", True)
        assert (of.verdict, found.code, found.severity, found.place.update) == ("FAIL", "RLS807", "error", 0)
        assert found.deviation == "deepspeed-adam-begins-at-step-1"


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("fault", NAMED, ids=lambda fault: fault.name)
def test_a_fault_is_named(fault: Fault, stage: int, trained: dict[str, list[Outcome]]) -> None:
    assert_named(fault, trained[f"{fault.name}-{stage}"][0])


@pytest.mark.parametrize("stage", STAGES)
def test_moments_of_the_files_are_compared_without_a_note(stage: int, trained: dict[str, list[Outcome]]) -> None:
    assert_named(OTHER_MOMENTS, trained[f"{OTHER_MOMENTS.name}-{stage}-elsewhere"][0])


def test_a_rank_that_drifts_is_named(trained: dict[str, list[Outcome]]) -> None:
    assert_named(DRIFT, trained[f"{DRIFT.name}-2"][0])


@pytest.mark.parametrize("fault", OF_WHOLE_WEIGHTS, ids=lambda fault: fault.name)
def test_a_write_to_the_model_is_named(fault: Fault, trained: dict[str, list[Outcome]]) -> None:
    assert_named(fault, trained[f"{fault.name}-2"][0])


@pytest.mark.parametrize("fault", OF_WHOLE_MODELS, ids=lambda fault: fault.name)
def test_what_a_whole_model_gives_alone_is_compared(fault: Fault, trained: dict[str, list[Outcome]]) -> None:
    assert_named(fault, trained[f"{fault.name}-2"][0])


def assert_named(fault: Fault, of: Outcome) -> None:
    """The rule of a fault names it at its place."""
    assert (of.error, of.verdict) == ("", "PASS" if fault.doubtful else "FAIL")
    named = [found for found in of.found if found.code == fault.code]
    assert named, of.found
    assert fault.cause in named[0].text
    if fault.where != WHOLE_RUN:
        assert is_at(named[0].place, fault.where), named[0].place
