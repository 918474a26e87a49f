"""What the engine of a rehearsal tells of the weights that it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlstep_hooks.record.events import WeightsHeld
from rlstep_hooks.record.ledger import records
from rlstep_hooks.systems.verl.rehearse.cpu.held import HeldWeights, held_by
from rlstep_hooks.systems.vllm_engine.environment import Place

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def told(folder: Path) -> list[WeightsHeld]:
    [(record,)] = records(folder).values()
    return [event for event in record.events() if isinstance(event, WeightsHeld)]


def test_a_label_without_a_push_is_a_sync_of_which_nothing_arrived(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    held = HeldWeights(model, Place(str(tmp_path), "run", served=False))
    for label in (0, 1):
        weights = {name: torch.full_like(tensor, label + 1.0) for name, tensor in model.named_parameters()}
        held.arrive(weights)
        model.load_state_dict(weights)
        held.loaded(label)
        held.generates(label)
    held.generates(2)
    held.generates(2)
    first, second, third = told(tmp_path)
    assert [event.number for event in (first, second, third)] == [0, 1, 2]
    assert [event.arrived for event in (first, second, third)] == [2, 2, 0]
    (one,) = {bits for probe in first.after for bits in probe.bits}
    assert one == 0x3F800000, "1.0"
    assert {bits for probe in second.before for bits in probe.bits} == {one}


def test_an_engine_without_a_run_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RLSTEP_DIR", "RLSTEP_RUN", "RLSTEP_ENGINES"):
        monkeypatch.delenv(name, raising=False)
    assert held_by(torch.nn.Linear(1, 1)) is None
