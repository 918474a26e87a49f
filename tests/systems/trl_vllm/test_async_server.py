"""AsyncGRPOTrainer as it is: its own worker in a process of its own, and its own client of a vLLM server.

Two things stand in for what needs a GPU: the attention kernel (tests/systems/trl_async/run.py), and gloo for NCCL
(tests/cpu/vllm_server/gloo.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.record.events import WeightsHeld, WeightsSent
from rlstep_hooks.systems.vllm_engine.environment import ENGINES
from tests.systems.trl.helpers import codes, problems
from tests.systems.trl_async.run import async_trainer
from tests.systems.trl_async.test_delivery import handed_over, those_of_the_first_sync
from tests.systems.trl_vllm.run import prepare
from tests.systems.trl_vllm.test_colocated import OF_DELIVERY
from tests.systems.trl_vllm.test_server import recorded, told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.systems.trl_vllm.server import Server

prepare()


@pytest.fixture
def build(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Builds a trainer that uses the server, with an audit."""
    monkeypatch.setenv(ENGINES, str(server.engines))

    def make(**settings: Any) -> tuple[Any, StepAuditCallback]:
        audit = StepAuditCallback(log_dir=tmp_path / "log", listeners=())
        return async_trainer(tmp_path, callbacks=[audit], server=server, **settings), audit

    yield make
    server.tell("heal")


def test_a_healthy_run_is_proved(build: Callable[..., Any], tmp_path: Path) -> None:
    trainer, audit = build(max_steps=6)
    trainer.train()
    assert not problems(audit.report)
    sent, held = recorded(tmp_path, WeightsSent), recorded(tmp_path, WeightsHeld)
    assert [event.number for event in held] == [event.number for event in sent] == list(range(len(sent)))
    rules = {rule.code: rule for rule in audit.report.rules}
    assert rules["RLS415"].verdict == rules["RLS416"].verdict == rules["RLS417"].verdict == "PASS"
    assert rules["RLS415"].checks == len(held) >= 5
    assert rules["RLS402"].verdict == "PASS"


def left_out(trainer: Any, server: Server) -> None:
    """The trainer believes that it sent the weights."""
    trainer.weight_transfer.send_weights = lambda iterator: [None for _ in iterator]


FAULTS: dict[str, tuple[Callable[[Any, Server], None], str, str]] = {
    "left out": (left_out, "RLS416", "0 of 26 arrived"),
    "old weights are handed over": (
        lambda t, s: handed_over(t, those_of_the_first_sync()),
        "RLS415",
        "handed over are",
    ),
    "a layer does not arrive": (told("lose_layer"), "RLS416", "14 of 26 arrived"),
    "nothing is loaded": (told("load_nothing"), "RLS415", ""),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_at_the_first_sync(build: Callable[..., Any], server: Server, name: str) -> None:
    fault, code, words = FAULTS[name]
    trainer, audit = build(max_steps=4)
    fault(trainer, server)
    trainer.train()
    assert codes(audit.report) & OF_DELIVERY == {code}
    first = next(finding for finding in audit.report.findings if finding.code == code)
    assert words in first.observed
    assert (first.where.rollout or 0) <= 1, "the first sync whose weights differ from those before"
