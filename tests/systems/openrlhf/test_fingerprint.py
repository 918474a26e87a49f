"""The label of weights: the same in a trainer and in the engine that holds them, another one for other weights."""

from __future__ import annotations

import torch

from rlstep_hooks.systems.openrlhf.observe.engine import HeldWeights
from rlstep_hooks.systems.openrlhf.observe.fingerprint import CHUNK, Sums, WeightSums, label_of, sums_of, total
from rlstep_hooks.systems.openrlhf.observe.labels import FIRST_WEIGHTS


def number_of(*tensors: torch.Tensor) -> int:
    return label_of(total(sums_of(tensors)))


def test_the_same_weights_have_the_same_label_however_they_are_laid_out() -> None:
    q, k = torch.randn(6, 8, dtype=torch.bfloat16), torch.randn(3, 8, dtype=torch.bfloat16)
    padded = torch.cat([k, torch.zeros(5, 8, dtype=torch.bfloat16)])
    assert number_of(q, k) == number_of(torch.cat([q, k])) == number_of(q.T, padded) != FIRST_WEIGHTS


def test_one_bit_gives_another_label() -> None:
    weights = torch.randn(CHUNK // 2 + 5)
    changed = weights.clone()
    changed[-1] = torch.nextafter(changed[-1], torch.tensor(9.0))
    assert number_of(weights) != number_of(changed)


def test_two_changes_that_cancel_in_a_sum_give_another_label() -> None:
    weights = torch.tensor([4, 9], dtype=torch.int16).view(torch.bfloat16)
    moved = torch.tensor([5, 8], dtype=torch.int16).view(torch.bfloat16)
    assert number_of(weights) != number_of(moved)


def test_a_tensor_may_change_once_it_was_seen() -> None:
    weights = torch.randn(64)
    expected = sums_of([weights.clone()])
    sums = WeightSums()
    sums.add(weights)
    weights.zero_()
    assert sums.take() == expected
    assert sums.take() == []


FIRST: dict[str, Sums] = {"qkv": (10, 20), "norm": (1, 1)}
NEXT: dict[str, Sums] = {"qkv": (11, 22), "norm": (2, 2)}
ALL = set(FIRST)


def test_what_a_whole_model_holds_is_its_label() -> None:
    held = HeldWeights()
    sent = label_of((13, 24))
    assert held.after_sync(sent, NEXT, ALL) == sent
    later = held.after_sync(label_of((99, 99)), NEXT, ALL)
    assert later == sent, "another sync came and nothing was loaded: it holds what it held"
    half = held.after_sync(label_of((50, 60)), NEXT | {"qkv": (48, 58 - 2)}, ALL)
    assert half not in (sent, label_of((50, 60))), "one tensor was not loaded: the weights of no sync"


def test_a_split_model_has_the_label_that_it_was_handed_as_long_as_it_changes() -> None:
    held = HeldWeights()
    assert held.after_sync(label_of((100, 1)), NEXT, ALL) == label_of((100, 1))
    assert held.after_sync(label_of((101, 1)), NEXT, ALL) == label_of((100, 1)), (
        "nothing changed: it holds the sync before"
    )
    assert held.after_sync(label_of((101, 1)), NEXT, ALL) == label_of((100, 1))
    assert held.after_sync(label_of((102, 1)), FIRST, None) == label_of((102, 1))
