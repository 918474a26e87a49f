"""AsyncGRPOTrainer for real: what became of each sync of weights, by what the trainer has and what the engine holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from rlstep_hooks.record.events import WeightsHeld, WeightsSent
from tests.systems.trl.helpers import codes, events_of, problems

if TYPE_CHECKING:
    from collections.abc import Callable


def handed_over(trainer: Any, change: Callable[[Any], Any]) -> None:
    """The trainer hands over other tensors than its policy's."""
    stream = trainer._streaming_iter
    trainer._streaming_iter = lambda: change(stream())


def loaded(trainer: Any, change: Callable[[Any], Any]) -> None:
    """The engine loads other tensors than it was handed."""
    engine = trainer.weight_transfer
    load = type(engine).send_weights
    engine.send_weights = lambda iterator: load(engine, change(iterator))


def half(tensors: Any) -> Any:
    return (pair for number, pair in enumerate(tensors) if number % 2)


def none(tensors: Any) -> Any:
    for _ in tensors:
        pass
    return iter(())


def one_layer_less(tensors: Any) -> Any:
    return ((name, tensor) for name, tensor in tensors if "layers.1." not in name)


def rounded(dtype: torch.dtype) -> Callable[[Any], Any]:
    return lambda tensors: ((name, tensor.to(dtype)) for name, tensor in tensors)


def a_little_off(tensors: Any) -> Any:
    return ((name, tensor + 1e-3) for name, tensor in tensors)


def those_of_the_first_sync() -> Callable[[Any], Any]:
    first: dict[str, Any] = {}

    def old(tensors: Any) -> Any:
        for name, tensor in tensors:
            yield name, first.setdefault(name, tensor.clone())

    return old


FAULTS: list[tuple[str, Callable[[Any], None], str, str]] = [
    ("half is handed over", lambda t: handed_over(t, half), "RLS416", "were handed over"),
    ("old weights are handed over", lambda t: handed_over(t, those_of_the_first_sync()), "RLS415", "handed over are"),
    ("other weights are handed over", lambda t: handed_over(t, a_little_off), "RLS415", "not the policy's"),
    ("nothing is loaded", lambda t: loaded(t, none), "RLS415", "changed nothing"),
    ("half is loaded", lambda t: loaded(t, half), "RLS415", "a part"),
    ("one layer is not loaded", lambda t: loaded(t, one_layer_less), "RLS415", "a part"),
    ("loaded a little off", lambda t: loaded(t, a_little_off), "RLS415", "neither"),
    ("handed over as bfloat16", lambda t: handed_over(t, rounded(torch.bfloat16)), "RLS417", "bfloat16"),
    ("loaded as float16", lambda t: loaded(t, rounded(torch.float16)), "RLS417", "float16"),
]


@pytest.mark.parametrize(("fault", "code", "words"), [fault[1:] for fault in FAULTS], ids=[each[0] for each in FAULTS])
def test_a_fault_is_found_at_the_first_sync(
    build: Callable[..., Any], fault: Callable[[Any], None], code: str, words: str
) -> None:
    trainer, audit = build(max_steps=3)
    fault(trainer)
    trainer.train()
    assert codes(audit.report) & {"RLS415", "RLS416", "RLS417"} == {code}
    first = next(finding for finding in audit.report.findings if finding.code == code)
    assert words in first.observed
    assert first.where.rollout is not None
    assert first.where.rollout <= 1, "the first sync whose weights differ from those before"


@pytest.mark.parametrize("settings", [{"max_steps": 6}, {"max_steps": 6, "weight_sync_steps": 2}], ids=str)
def test_a_healthy_run_is_proved(build: Callable[..., Any], settings: dict[str, Any]) -> None:
    trainer, audit = build(**settings)
    trainer.train()
    assert not problems(audit.report)
    proved = {rule.code: rule for rule in audit.report.rules}
    syncs = [event for event in events_of(audit) if isinstance(event, WeightsHeld)]
    assert proved["RLS415"].verdict == proved["RLS416"].verdict == proved["RLS417"].verdict == "PASS"
    assert proved["RLS415"].checks == len(syncs) >= 3
    tensors = {name for name, _ in trainer.model.named_parameters()}
    read = [{probe.name for probe in event.after} for event in syncs]
    assert read[0] == tensors, "all of them at first"
    assert all(len(names) < len(tensors) / 2 for names in read[2:]), "then by turns"
    sent = [event for event in events_of(audit) if isinstance(event, WeightsSent)]
    assert [event.number for event in sent] == list(range(len(syncs)))
    assert all(event.sent == event.tensors == len(tensors) for event in sent)
