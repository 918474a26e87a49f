"""A plan says in one line that a run of its launch cannot be recorded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.cli import main
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.observed_live import not_observed
from tests.golden.reading import planned

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.declaration import System

SLIME = "python train.py --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 256 --num-rollout 10"
SWIFT = "swift rlhf --rlhf_type grpo --num_generations 8 --per_device_train_batch_size 8 "
MEGATRON = "NPROC_PER_NODE=8 megatron rlhf --rlhf_type grpo --num_generations 8 --global_batch_size 64 --train_iters 10"
TRL = "trl grpo --num_generations 8 --per_device_train_batch_size 8 --gradient_accumulation_steps 2"


def said(launch: str, **options: str) -> list[str]:
    return [note.text for note in planned(launch, **options).notes if note.kind == "unobserved"]


@pytest.mark.parametrize(
    ("launch", "version", "expected"),
    [
        (SLIME, None, ["not observed live: slime is planned only"]),
        (MEGATRON, None, ["not observed live: ms-swift started by `megatron rlhf` is planned only"]),
        (SWIFT, "4.6.0", []),
        (SWIFT, "3.9.0", ["not observed live: of ms-swift, runs of 4.4 and later, before 4.7, are observed"]),
        (TRL, None, []),
    ],
)
def test_one_line(launch: str, version: str | None, expected: list[str]) -> None:
    assert said(launch, **({"version": version} if version else {})) == expected


def printed(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["plan", *options, "--", *SLIME.split()])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_in_text_and_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert "not observed live: slime is planned only" in printed(capsys)
    notes = json.loads(printed(capsys, "--json"))["notes"]
    assert {"kind": "unobserved", "text": "not observed live: slime is planned only"} in notes


@pytest.mark.parametrize("system", [index.system_of(name) for name in index.names()], ids=lambda system: system.name)
def test_every_system_that_attaches_nowhere_says_so(system: System) -> None:
    from rlstep_hooks.launch.command import Command, Program
    from rlstep_hooks.launch.settings import Settings
    from rlstep_hooks.systems.engine.request import Request

    request = Request(
        settings=Settings({}, {}), version=system.version, command=Command(Program("config", system.name), ())
    )
    assert bool(not_observed(system, request)) == (not system.attaches_by)
