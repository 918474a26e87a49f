"""TRL's server mode with the real vLLM: `trl vllm-serve`, and trainers that use the server one after the other.

What stands in for what is in tests/systems/trl_vllm/server.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.record.events import KeysReused, WeightsHeld, WeightsSent
from rlstep_hooks.record.ledger import read_lines
from rlstep_hooks.systems.vllm_engine.environment import ENGINES
from tests.systems.ports import free_port
from tests.systems.trl.helpers import codes, problems
from tests.systems.trl_async.test_delivery import one_layer_less, those_of_the_first_sync
from tests.systems.trl_vllm.run import prepare, trainer_of
from tests.systems.trl_vllm.test_colocated import LONG, OF_DELIVERY, handed_over, long_rows

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
        connected = {"vllm_mode": "server", "vllm_server_base_url": server.url, "vllm_group_port": free_port()}
        return trainer_of(server.model, tmp_path, callbacks=[audit], **connected, **settings), audit

    yield make
    server.tell("heal")


def recorded(folder: Path, kind: type) -> list[Any]:
    """The events of one kind in a run's record."""
    (record,) = (folder / "log").glob("*.rank0.jsonl")
    return [event for event, _ in read_lines(record) if isinstance(event, kind)]


def copied(trainer: Any) -> None:
    """Each tensor is copied when it is handed over, so that what happens to it afterwards does not matter."""
    handed_over(trainer, lambda tensors: ((name, tensor.clone()) for name, tensor in tensors))


@pytest.mark.parametrize("settings", [{"max_steps": 5}, {"lora": True}, {"num_iterations": 2, "max_steps": 6}], ids=str)
def test_a_healthy_run_is_proved(build: Callable[..., Any], tmp_path: Path, settings: dict[str, Any]) -> None:
    trainer, audit = build(**settings)
    if "lora" in settings:
        copied(trainer)
    trainer.train()
    assert not problems(audit.report)
    sent, held = recorded(tmp_path, WeightsSent), recorded(tmp_path, WeightsHeld)
    assert [event.number for event in held] == [event.number for event in sent] == list(range(len(sent)))
    assert len({event.engine for event in held}) == 1
    rules = {rule.code: rule for rule in audit.report.rules}
    assert rules["RLS415"].verdict == rules["RLS416"].verdict == rules["RLS417"].verdict == "PASS"
    assert rules["RLS415"].checks == len(held) >= 3
    assert rules["RLS415"].note == "", "every tensor was compared"
    # What was there before a later sync is read before the engine takes its tensors away.
    assert all(event.before for event in held[1:])


def test_a_lora_adapter_that_trl_takes_off_before_it_sends_is_found(build: Callable[..., Any]) -> None:
    """The last GiB of each sync, here the whole model, is sent without the adapter, by TRL 1.16.0 with vLLM from 0.28 on.

    `_iter_named_params` takes the adapter off when its last tensor was taken (generation/vllm_generation.py:469), and vLLM copies the
    tensors of a chunk after that (distributed/weight_transfer/packed_tensor.py:132).
    """
    trainer, audit = build(lora=True)
    trainer.train()
    assert codes(audit.report) & OF_DELIVERY == {"RLS415"}
    first = next(finding for finding in audit.report.findings if finding.code == "RLS415")
    # Of what is looked at, the tensors with an adapter are wrong: q and down in both layers.
    assert "4 of 26 tensors looked at" in first.observed
    assert (first.where.rollout or 0) <= 1


def left_out(trainer: Any, server: Server) -> None:
    """The message with the weights is never sent, and nobody says so."""
    trainer.vllm_generation.vllm_client.update_named_params = lambda metadata, tensors: None


def later_left_out(trainer: Any, server: Server) -> None:
    """The first sync is sent, and none after it."""
    client = trainer.vllm_generation.vllm_client
    send = client.update_named_params

    def once(metadata: Any, tensors: Any) -> None:
        send(metadata, tensors)
        client.update_named_params = lambda metadata, tensors: None

    client.update_named_params = once


def told(fault: str) -> Callable[[Any, Server], None]:
    return lambda trainer, server: server.tell(fault)


FAULTS: dict[str, tuple[Callable[[Any, Server], None], str, str]] = {
    "left out": (left_out, "RLS416", "0 of 26 arrived"),
    "left out after the first": (later_left_out, "RLS416", "0 of 26 were handed over"),
    "a layer is not handed over": (lambda t, s: handed_over(t, one_layer_less), "RLS416", "14 of 26 were handed over"),
    "a layer does not arrive": (told("lose_layer"), "RLS416", "14 of 26 arrived"),
    "old weights are handed over": (
        lambda t, s: handed_over(t, those_of_the_first_sync()),
        "RLS415",
        "handed over are those of version 0",
    ),
    "nothing is loaded": (told("load_nothing"), "RLS415", ""),
    "only attention is loaded": (told("load_attention"), "RLS415", ""),
    "woken with old weights": (told("keep_old"), "RLS415", "woke up"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_at_the_first_sync(build: Callable[..., Any], server: Server, name: str) -> None:
    fault, code, words = FAULTS[name]
    trainer, audit = build()
    fault(trainer, server)
    trainer.train()
    assert codes(audit.report) & OF_DELIVERY == {code}
    first = next(finding for finding in audit.report.findings if finding.code == code)
    assert words in first.observed
    assert first.where.rollout is not None
    assert first.where.rollout <= 1, "the first sync whose weights differ from those before"


def test_keys_of_older_weights_are_found_in_a_server(build: Callable[..., Any], tmp_path: Path) -> None:
    trainer, audit = build(rows=long_rows(), **LONG)
    client, resets = trainer.vllm_generation.vllm_client, []
    reset = client.reset_prefix_cache

    def not_after_the_second() -> None:
        resets.append(len(resets))
        if len(resets) != 2:
            reset()

    client.reset_prefix_cache = not_after_the_second
    trainer.train()
    told = recorded(tmp_path, KeysReused)
    assert [(event.number, event.oldest, event.stale > 0) for event in told if event.stale] == [(1, 0, True)]
    assert {event.number for event in told} == set(range(len(resets)))
    assert codes(audit.report) & (OF_DELIVERY | {"RLS422"}) == {"RLS422"}


def test_a_server_that_tells_nothing_is_not_called_right(
    build: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ENGINES)
    trainer, audit = build()
    trainer.train()
    assert not problems(audit.report)
    (rule,) = (rule for rule in audit.report.rules if rule.code == "RLS415")
    assert rule.verdict == "NOT_EVALUATED"
    assert f"start it with {ENGINES}={tmp_path / 'log' / 'engines'}" in rule.reason
