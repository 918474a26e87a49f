"""Three micro-batches an update on two ranks, in whichever release of DeepSpeed is installed: its known faults are named, each in its
own words, and nothing else is. `nox -s ranks-bugs` runs this with releases that have faults."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.systems.deepspeed_engine.faults import faults_of
from tests.systems.trl_ranks.cases import Case
from tests.systems.trl_ranks.launching import outcomes

if TYPE_CHECKING:
    from collections.abc import Collection

    from tests.systems.trl_ranks.cases import Outcome

SETTINGS = {
    "rows": 24,
    "gradient_accumulation_steps": 3,
    "steps_per_generation": 3,
    "num_iterations": 2,
    "num_train_epochs": 1,
}
CASES = (
    "zero0", "zero0-bf16", "zero1", "zero1-offload", "zero2", "zero2-bf16", "zero2-offload", "zero3", "zero3-offload",
)  # fmt: skip
REPORTED = {
    **{f"accelerate-3877-{count}": count for count in (1, 2, 4, 8)},
    "trl-4631": 4,
}
"""Reports of runs that train worse with ZeRO-2, made small -> micro-batches of an update. Of the first, the same 16 samples of a rank
are behind each update, whatever the accumulation; it trains with supervision there, and with GRPO here."""
NAMED = {
    "deepspeed-zero-2-keeps-the-last-micro-batch": ("RLS811", "the gradients of the last of 3 micro-batches alone"),
    "deepspeed-offload-keeps-first-and-last-micro-batch": (
        "RLS811",
        "the gradients of the first and the last of 3 micro-batches alone",
    ),
    "deepspeed-adam-begins-at-step-1": ("RLS807", "1, and all probed moments are 0"),
}


def case_of(name: str) -> Case:
    """A run; its name has words for the stage, `offload` and `bf16`."""
    words = name.split("-")
    sharding = {"stage": int(words[0][4:]), "offload": "offload" in words}
    return Case(name=name, settings={**SETTINGS, **({"bf16": True} if "bf16" in words else {})}, sharding=sharding)


def reported_case(name: str) -> Case:
    """A reported run."""
    count = REPORTED[name]
    settings: dict[str, Any] = {"rows": 32, "gradient_accumulation_steps": count, "max_steps": 4}
    return Case(
        name=name,
        settings=settings | ({"bf16": True} if name == "trl-4631" else {"per_device_train_batch_size": 16 // count}),
    )


def deployment_of(name: str) -> Collection[str]:
    """What the run's deployment is called."""
    return {f"ZeRO-{name[4]}", *({"offload"} if "offload" in name else ())}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Outcome]]:
    """What both ranks say of each case."""
    cases = [*map(case_of, CASES), *map(reported_case, REPORTED)]
    return outcomes(tmp_path_factory.mktemp("releases"), "zero2", cases)


@pytest.mark.parametrize("name", CASES)
def test_faults_of_the_release_are_named(name: str, trained: dict[str, list[Outcome]]) -> None:
    known = faults_of(version("deepspeed"), deployment_of(name), reduced="bf16" in name, microbatches=3)
    first = trained[name][0]
    assert first.error == ""
    warned = [found.text for found in first.found if found.code == "RLS119"]
    assert [fault.title in text for fault, text in zip(known, warned, strict=True)] == [True] * len(known)
    errors = [found for found in first.found if found.code != "RLS119"]
    assert [found.deviation for found in errors] == [fault.name for fault in known]
    for found in errors:
        code, words = NAMED[found.deviation]
        assert (found.code, found.severity, found.place.update) == (code, "error", 0)
        assert found.text.startswith(words)
    assert first.verdict == ("FAIL" if known else "PASS")
    compared = {code for code, (verdict, _) in first.rules.items() if verdict != "NOT_EVALUATED"}
    assert compared >= {"RLS419", "RLS806", "RLS807", "RLS811"}


@pytest.mark.parametrize("name", REPORTED)
def test_reports_of_zero_2_are_explained(name: str, trained: dict[str, list[Outcome]]) -> None:
    known = faults_of(version("deepspeed"), {"ZeRO-2"}, reduced=name == "trl-4631", microbatches=REPORTED[name])
    first = trained[name][0]
    assert first.error == ""
    errors = {found.deviation: found for found in first.found if found.code != "RLS119"}
    assert list(errors) == [fault.name for fault in known]
    assert all((found.code, found.place.update) == ("RLS811", 0) for found in errors.values())
    assert first.verdict == ("FAIL" if known else "PASS")
