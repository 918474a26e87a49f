"""Numbers that are fetched later, from more than one device."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from rlstep_hooks.observe.deferred import DeferredValues  # noqa: E402


def test_numbers_of_what_is_offloaded_come_from_another_device() -> None:
    values: DeferredValues[str] = DeferredValues()
    for name, device in (("one", "cpu"), ("two", "meta"), ("three", "cpu")):
        values.add(name, torch.zeros(2, device=device))
    values.send()
    assert [(key, vector.device.type) for key, vector in values.tensors()] == [
        ("one", "cpu"),
        ("three", "cpu"),
        ("two", "meta"),
    ]
