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
        ("0.18.2", ("ZeRO-2",), False, ["deepspeed-zero-2-keeps-the-last-micro-batch"]),
        ("0.18.2", ("ZeRO-2", "offload"), True, ["deepspeed-offload-keeps-first-and-last-micro-batch"]),
        ("0.18.3", ("ZeRO-2",), False, []),
        ("0.17.5", ("ZeRO-2",), False, []),
        ("0.18.9", ("ZeRO-2", "offload"), False, ["deepspeed-offload-keeps-first-and-last-micro-batch"]),
        ("0.19.0", ("ZeRO-2", "offload"), False, []),
        ("0.18.2", ("ZeRO-1",), False, []),
        ("0.18.2", ("ZeRO-3", "offload"), False, []),
        ("", ("ZeRO-0",), True, []),
        ("of a checkout", ("ZeRO-0",), True, []),
    ],
)
def test_a_run_has_the_faults_of_its_release(
    release: str, deployment: tuple[str, ...], reduced: bool, found: list[str]
) -> None:
    assert names(release, *deployment, reduced=reduced) == found


def test_it_takes_as_many_microbatches_as_are_lost() -> None:
    assert [len(names("0.18.2", "ZeRO-2", microbatches=number)) for number in (1, 2, 3)] == [0, 1, 1]
    assert [len(names("0.18.9", "ZeRO-2", "offload", microbatches=number)) for number in (1, 2, 3)] == [0, 0, 1]


def test_each_has_a_name_of_its_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
