"""ms-swift's GRPO on two ranks (gloo, CPU), in DDP and under DeepSpeed: healthy runs are silent, and mistakes are found by their rules.

One launch for each deployment trains all of its cases, one after another in one process group.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, get_args

import pytest

from rlstep_hooks.systems.engine.links import Deployment as Named
from tests.reports import unproved
from tests.systems.swift_ranks.faults import LONG, OF_RANKS, REFERENCE, TWICE
from tests.systems.trl_ranks.cases import Case, Deployment, Outcome
from tests.systems.trl_ranks.launching import outcomes

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = Path(__file__).with_name("train_swift.py")
DEPLOYMENTS: tuple[Deployment, ...] = ("ddp", "zero2", "zero3")
HEALTHY: dict[str, dict[str, Any]] = {
    "two passes": TWICE,
    "bf16": TWICE | {"bf16": "true"},
    "adapters": TWICE | {"tuner_type": "lora", "lora_dropout": 0},
    "checkpoints": TWICE
    | {"gradient_checkpointing": "true", "gradient_checkpointing_kwargs": '{"use_reentrant": false}'},
    "a reference": REFERENCE,
    "entropies": TWICE | {"log_entropy": "true"},
    "a rollout of two updates": {"steps_per_generation": 4},
    "dapo": TWICE | {"loss_type": "dapo", "epsilon_high": 0.28},
    "a penalty in the rewards": {"advantage_estimator": "rloo", "kl_in_reward": "true", "beta": 0.5},
    "long completions": LONG,
}


def passed(of: Outcome) -> set[str]:
    """The rules that had something to compare, and nothing to find."""
    return {code for code, (verdict, _) in of.rules.items() if verdict == "PASS"}


@cache
def trained(deployment: Deployment) -> dict[str, list[Outcome]]:
    """What both ranks say of each case."""
    cases = [Case(name=name, settings=settings) for name, settings in HEALTHY.items()]
    cases.append(Case(name="a penalty of all", settings={"advantage_estimator": "reinforce_plus_plus"}))
    cases += [Case(name=name, fault=name, settings=of.settings) for name, of in OF_RANKS[deployment].items()]
    return outcomes(Path(mkdtemp(prefix=f"swift-{deployment}-")), deployment, cases, script=SCRIPT)


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_a_healthy_run_is_silent(deployment: Deployment, name: str) -> None:
    of_ranks = trained(deployment)[name]
    for of in of_ranks:
        assert (of.error, of.found, of.verdict) == ("", [], "PASS")
    assert passed(of_ranks[0]) >= {"RLS203", "RLS306", "RLS516", "RLS519", "RLS605", "RLS811", "RLS902"}


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_what_is_called_proved_is_compared(deployment: Deployment) -> None:
    compared = {code for name in HEALTHY for code in passed(trained(deployment)[name][0])}
    stage = next(each for each in get_args(Named) if each.replace("-", "").lower() == deployment)
    assert unproved(compared, "swift", stage) == set()


def test_a_penalty_of_other_processes_is_said_not_to_be_known() -> None:
    verdict, reason = trained("ddp")["a penalty of all"][0].rules["RLS516"]
    assert (verdict, reason) == (
        "NOT_EVALUATED",
        "the KL penalty is part of the rewards, and that of other processes is not known",
    )


def mistakes() -> Iterator[tuple[Deployment, str]]:
    for deployment in DEPLOYMENTS:
        for name in OF_RANKS[deployment]:
            yield deployment, name


@pytest.mark.parametrize(("deployment", "name"), mistakes())
def test_a_mistake_is_found(deployment: Deployment, name: str) -> None:
    first = trained(deployment)[name][0]
    assert first.error == ""
    assert OF_RANKS[deployment][name].code in {found.code for found in first.found}
