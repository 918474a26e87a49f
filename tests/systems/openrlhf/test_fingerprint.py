"""The number of a sync: the same on both sides, another one for other weights."""

from __future__ import annotations

import torch

from rlstep_hooks.systems.openrlhf.observe.fingerprint import NUMBERS, Fingerprint
from rlstep_hooks.systems.openrlhf.observe.labels import FIRST_WEIGHTS


def number_of(*tensors: torch.Tensor) -> int | None:
    fingerprint = Fingerprint()
    for tensor in tensors:
        fingerprint.add(tensor)
    return fingerprint.take()


def test_the_same_weights_have_the_same_number_on_both_sides() -> None:
    weights = [torch.randn(3, 70, dtype=torch.bfloat16), torch.randn(5)]
    assert number_of(*weights) == number_of(*[tensor.clone() for tensor in weights]) != FIRST_WEIGHTS


def test_other_values_and_another_order_have_another_number() -> None:
    first, second = torch.randn(64), torch.randn(64)
    changed = first.clone()
    changed[32 + NUMBERS - 1] += 1e-6
    assert len({number_of(first, second), number_of(second, first), number_of(changed, second)}) == 3


def test_a_tensor_may_change_once_it_was_seen() -> None:
    weights = torch.randn(64)
    expected = number_of(weights.clone())
    fingerprint = Fingerprint()
    fingerprint.add(weights)
    weights.zero_()
    assert fingerprint.take() == expected


def test_a_sync_without_tensors_has_no_number_and_the_next_starts_anew() -> None:
    fingerprint = Fingerprint()
    assert fingerprint.take() is None
    fingerprint.add(torch.ones(4))
    assert fingerprint.take() == number_of(torch.ones(4))
    assert fingerprint.take() is None
