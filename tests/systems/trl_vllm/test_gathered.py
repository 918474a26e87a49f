"""What two ranks gather of their parts for the real vLLM, in a server or in each of them, is what they hold: FSDP2 and ZeRO-3; healthy
runs and faults."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.systems.vllm_engine.environment import ENGINES
from tests.systems.ports import free_port
from tests.systems.trl_ranks.cases import Case
from tests.systems.trl_ranks.launching import outcomes
from tests.systems.trl_vllm.run import save_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.systems.trl_ranks.cases import Deployment
    from tests.systems.trl_vllm.server import Server

SCRIPT = Path(__file__).with_name("train_ranks.py")
FAULTS = ("parts_exchanged", "part_of_the_first_rank_alone", "parts_of_the_first_sync")


DEPLOYMENTS = ("ddp", "fsdp2", "zero2", "zero3")


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_what_ranks_gather_for_a_server_is_compared_with_their_parts(
    deployment: Deployment, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {ENGINES: str(server.engines), "SERVER": server.url, "MODEL": str(server.model)}.items():
        monkeypatch.setenv(name, value)
    check(deployment, tmp_path, lambda: {"vllm_group_port": free_port()})


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_what_ranks_gather_for_an_engine_of_their_own_is_compared_with_their_parts(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL", str(save_model(tmp_path)))
    check(deployment, tmp_path / "runs", lambda: {"vllm_mode": "colocate"})


def check(deployment: Deployment, folder: Path, settings: Callable[[], dict[str, Any]]) -> None:
    """Train healthy and with each fault; each trainer has settings of its own."""
    usual = {"max_steps": 4, "bf16": False}
    sharding = {"zero": {"stage3_param_persistence_threshold": 0}} if deployment == "zero3" else {}
    faults = FAULTS if deployment in ("fsdp2", "zero3") else ()
    cases = [
        Case(name=name or "healthy", fault=name, settings=usual | settings(), sharding=sharding)
        for name in ("", *faults)
    ]
    trained = outcomes(folder, deployment, cases, script=SCRIPT)
    for of in trained["healthy"]:
        assert (of.error, of.found, of.verdict) == ("", [], "PASS")
        assert of.rules["RLS415"][0] == "PASS"
    for name in faults:
        first, second = trained[name]
        assert (first.error, second.error) == ("", "")
        for of in (first, second):
            found = [finding for finding in of.found if finding.code == "RLS415"]
            assert found, (name, of.found)
            assert found[0].place.rollout == 0, "the first sync whose weights differ from those before"
