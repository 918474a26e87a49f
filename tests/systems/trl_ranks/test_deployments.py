"""Healthy runs of what people train with, in each deployment: dtypes, adapters, checkpoints of activations, accumulation, several
passes, RLOO, compiled models, fp16 with a scaler, and three ranks with uneven rows. Each is silent, and all is compared that can be."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, get_args

import pytest

from tests.systems.trl.conftest import RELEASE
from tests.systems.trl.random_runs.around import has_peft
from tests.systems.trl.random_runs.draws import Draw
from tests.systems.trl_ranks.cases import Case, Deployment, Outcome
from tests.systems.trl_ranks.launching import outcomes
from tests.systems.trl_ranks.rank_faults import SCALED

pytestmark = pytest.mark.thorough
USUAL: dict[str, Any] = {
    "gradient_accumulation_steps": 2, "steps_per_generation": 4, "num_iterations": 2, "num_train_epochs": 1, "bf16": False,
}  # fmt: skip
"""Two micro-batches an update, two updates and two passes for each rollout."""
_GRPO = USUAL | {"loss_type": "grpo"}
"""The default loss of TRL 0.22 to 1.9 is wrong by itself where a rollout is larger than an update (trl PR#6024)."""
CHECKPOINTS = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
TRAINED: dict[str, Draw] = {
    "float32": Draw("GRPO", _GRPO),
    "bf16": Draw("GRPO", _GRPO | {"bf16": True}),
    "accumulated-three-times": Draw("GRPO", _GRPO | {"gradient_accumulation_steps": 3, "steps_per_generation": 3}),
    "lora": Draw("GRPO", _GRPO, {"adapter": "lora"}),
    "lora-bf16": Draw("GRPO", _GRPO | {"bf16": True, "beta": 0.04}, {"adapter": "lora"}),
    "checkpoints": Draw("GRPO", _GRPO | CHECKPOINTS),
    "checkpoints-bf16": Draw("GRPO", _GRPO | CHECKPOINTS | {"bf16": True}),
    "rloo": Draw("RLOO", USUAL | {"beta": 0.05}),
    "rloo-cut-off-masked": Draw("RLOO", USUAL | {"beta": 0.05, "mask_truncated_completions": True}),
    "rloo-bf16": Draw("RLOO", USUAL | {"bf16": True}),
    "reference": Draw("GRPO", _GRPO | {"beta": 0.04}),
}
COMPILED = Draw("GRPO", _GRPO | {"torch_compile": True, "torch_compile_backend": "aot_eager"})
UNEVEN = Draw(
    "GRPO",
    USUAL | {"num_generations": 3, "per_device_train_batch_size": 3, "loss_type": "dapo", "steps_per_generation": 2},
    {"rows": 13},
)
OFFLOADED = ("zero2", "zero3")
OFFLOADED_TOO = ("float32", "bf16", *(["lora"] if has_peft() else []))
LEFT_OUT = {
    "zero0": ("bf16", "lora-bf16", "checkpoints-bf16", "rloo-bf16"),
    "fsdp1": ("lora-bf16",),
    "zero3": ("rloo", "rloo-bf16", "reference") if RELEASE.release[:2] < (1, 16) else (),
}
"""DeepSpeed 0.19.8 without ZeRO begins Adam at step 1 in bf16, which is a finding; FSDP1 refuses adapters in bf16 when it generates;
TRL 1.0 loads references with a `device_map`, which DeepSpeed refuses."""


def names(deployment: Deployment) -> list[str]:
    """Of the runs on two ranks those that a deployment trains rightly; adapters where PEFT is installed."""
    left_out = LEFT_OUT.get(deployment, ())
    return [
        name
        for name, draw in TRAINED.items()
        if name not in left_out and (has_peft() or not draw.around.get("adapter"))
    ]


@cache
def trained(deployment: Deployment, ranks: int) -> dict[str, list[Outcome]]:
    """What all ranks say of each run, in one launch."""
    cases = [Case(name=name, draw=TRAINED[name].to_json()) for name in names(deployment)]
    if deployment in OFFLOADED:
        cases += [
            Case(name=f"offloaded-{name}", draw=TRAINED[name].to_json(), sharding={"offload": True})
            for name in OFFLOADED_TOO
        ]
    if deployment == "ddp":
        cases += [
            Case(name="scaled", fault="scaled", healthy=True, settings=dict(SCALED.settings)),
            Case(name="compiled", draw=COMPILED.to_json()),
        ]
    if ranks > 2:
        cases = [Case(name="uneven", draw=UNEVEN.to_json())]
    return outcomes(Path(mkdtemp(prefix=f"{deployment}-{ranks}-")), deployment, cases, ranks=ranks)


def is_silent(of_ranks: list[Outcome]) -> None:
    for of in of_ranks:
        assert (of.error, of.false, of.found) == ("", [], [])
    assert of_ranks[0].verdict == "PASS"
    passed = {code for code, (verdict, _) in of_ranks[0].rules.items() if verdict == "PASS"}
    assert passed >= {"RLS203", "RLS210", "RLS301", "RLS404", "RLS602", "RLS801", "RLS811", "RLS902"}


@pytest.mark.parametrize(("deployment", "name"), [(of, name) for of in get_args(Deployment) for name in names(of)])
def test_a_healthy_run_is_silent(deployment: Deployment, name: str) -> None:
    is_silent(trained(deployment, 2)[name])


@pytest.mark.parametrize("name", OFFLOADED_TOO)
@pytest.mark.parametrize("deployment", OFFLOADED)
def test_a_healthy_run_with_an_optimizer_on_the_host_is_silent(deployment: Deployment, name: str) -> None:
    is_silent(trained(deployment, 2)[f"offloaded-{name}"])


@pytest.mark.parametrize("name", ["scaled", "compiled"])
def test_a_scaler_and_a_compiled_model_are_silent(name: str) -> None:
    is_silent(trained("ddp", 2)[name])


@pytest.mark.parametrize("deployment", ["ddp", "fsdp2", "zero2", "zero3"])
def test_three_ranks_with_uneven_rows_are_silent(deployment: Deployment) -> None:
    is_silent(trained(deployment, 3)["uneven"])
