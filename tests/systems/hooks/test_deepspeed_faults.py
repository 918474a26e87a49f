"""Which runs have a known fault of DeepSpeed's."""

from __future__ import annotations

import pytest

from rlstep_hooks.systems.deepspeed_engine.faults import FAULTS, faults_of


def names(release: str, *deployment: str, reduced: bool = False, microbatches: int | None = None) -> list[str]:
    """The names of a run's faults."""
    return [of.name for of in faults_of(release, deployment, reduced=reduced, microbatches=microbatches)]


@pytest.mark.parametrize(
    ("release", "deployment", "reduced", "found"),
    [
        ("0.19.8", ("ZeRO-0",), True, ["deepspeed-adam-begins-at-step-1"]),
        ("0.19.8", ("ZeRO-0", "LoRA"), True, ["deepspeed-adam-begins-at-step-1"]),
        ("0.19.8", ("ZeRO-0",), False, []),
        ("0.19.8", ("ZeRO-2",), True, []),
        ("", ("ZeRO-0",), True, []),
        ("of a checkout", ("ZeRO-0",), True, []),
    ],
)
def test_a_run_has_the_faults_of_its_release(
    release: str, deployment: tuple[str, ...], reduced: bool, found: list[str]
) -> None:
    assert names(release, *deployment, reduced=reduced) == found


def test_each_has_a_name_of_its_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
