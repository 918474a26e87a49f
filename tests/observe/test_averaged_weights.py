"""A moving average of weights, as its formula gives it and otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

import torch

from rlstep_hooks.observe.averaged_weights import AveragedWeights

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

KEPT = 0.9


def right(weights: Tensor, average: Tensor) -> Tensor:
    return (1 - KEPT) * weights + KEPT * average


MISTAKES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "left out": lambda weights, average: average,
    "a copy": lambda weights, average: weights,
    "shares exchanged": lambda weights, average: KEPT * weights + (1 - KEPT) * average,
    "made twice": lambda weights, average: right(weights, right(weights, average)),
}


def found(average: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype, *, size: float = 0.1) -> str:
    """What is found of two tensors in three updates, each of which changes weights by about this size."""
    draw = torch.Generator().manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(40, 5, generator=draw).to(dtype)) for _ in range(2)]
    averaged = [torch.nn.Parameter(of.detach().clone()) for of in weights]
    followed = AveragedWeights(weights, averaged, KEPT)
    for update in range(4):
        followed.look(update)
        with torch.no_grad():
            for of, mean in zip(weights, averaged, strict=True):
                of.add_(torch.randn(of.shape, generator=draw).to(dtype), alpha=size)
                mean.copy_(average(of, mean))
        followed.look(update)  # a second micro-batch, which is not looked at
    return followed.found()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_average_of_the_formula_and_others(dtype: torch.dtype) -> None:
    assert found(right, dtype) == "as saved"
    assert {name: found(of, dtype) for name, of in MISTAKES.items()} == dict.fromkeys(MISTAKES, "others")


def test_changes_that_rounding_hides_say_nothing() -> None:
    assert found(right, torch.bfloat16, size=1e-6) == "unknown"


def test_tensors_of_which_a_process_holds_a_part_are_not_looked_at() -> None:
    weights = [torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.ones(0))]
    followed = AveragedWeights(weights, [torch.nn.Parameter(torch.ones(2)), weights[1]], KEPT)
    followed.look(0)
    followed.look(1)
    assert followed.found() == "unknown"
