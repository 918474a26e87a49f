"""What two ranks gather of their parts for a real vLLM server is what they hold: FSDP2 and ZeRO-3; healthy runs and faults."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.systems.vllm_engine.environment import ENGINES
from tests.systems.ports import free_port
from tests.systems.trl_ranks.cases import Case
from tests.systems.trl_ranks.launching import outcomes

if TYPE_CHECKING:
    from tests.systems.trl_ranks.cases import Deployment
    from tests.systems.trl_vllm.server import Server

SCRIPT = Path(__file__).with_name("train_ranks.py")
FAULTS = ("parts_exchanged", "part_of_the_first_rank_alone", "parts_of_the_first_sync")


@pytest.mark.parametrize("deployment", ["ddp", "fsdp2", "zero3"])
def test_what_ranks_gather_is_compared_with_their_parts(
    deployment: Deployment, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {ENGINES: str(server.engines), "SERVER": server.url, "MODEL": str(server.model)}.items():
        monkeypatch.setenv(name, value)
    usual = {"max_steps": 4, "bf16": False}
    sharding = {"zero": {"stage3_param_persistence_threshold": 0}} if deployment == "zero3" else {}
    cases = [
        Case(name=name or "healthy", fault=name, settings=usual | {"vllm_group_port": free_port()}, sharding=sharding)
        for name in ("", *(FAULTS if deployment != "ddp" else ()))
    ]
    trained = outcomes(tmp_path, deployment, cases, script=SCRIPT)
    for of in trained["healthy"]:
        assert (of.error, of.found, of.verdict) == ("", [], "PASS")
        assert of.rules["RLS415"][0] == "PASS"
    for name in FAULTS if deployment != "ddp" else ():
        first, second = trained[name]
        assert (first.error, second.error) == ("", "")
        for of in (first, second):
            found = [finding for finding in of.found if finding.code == "RLS415"]
            assert found, (name, of.found)
            assert found[0].place.rollout == 0, "the first sync whose weights differ from those before"
