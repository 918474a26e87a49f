"""Sums of the bits of tensors, many of which are read together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from rlstep_hooks.observe.bits import TOGETHER, sums_in_any_order, sums_of_bits  # noqa: E402 - torch may be missing

if TYPE_CHECKING:
    from torch import Tensor

WORD = 8


def summed(tensor: Tensor) -> int:
    """The sum by hand: words of eight bytes, then what is left over, number by number, as a signed number of 64 bits."""
    size = tensor.element_size()
    data = bytes(tensor.contiguous().flatten().view(torch.uint8).tolist()) if tensor.numel() else b""
    whole = len(data) // WORD * WORD
    words = [data[at : at + WORD] for at in range(0, whole, WORD)]
    rest = [data[at : at + size] for at in range(whole, len(data), size)]
    total = sum(int.from_bytes(part, "little", signed=True) for part in (*words, *rest))
    return (total + 2**63) % 2**64 - 2**63


def tensors() -> list[Tensor]:
    torch.manual_seed(0)
    return [
        torch.randn(3, 5),
        torch.tensor(2.5),
        torch.randn(3, 5),
        torch.randn(7).bfloat16(),
        torch.tensor(-1.0),
        torch.randn(6, 4).t(),
        torch.randn(4, 6),
        torch.randn(9).bfloat16()[1:8],
        torch.randn(5, dtype=torch.float64),
        torch.full((3, 5), torch.nan),
        torch.arange(5),
        torch.randn(TOGETHER // 2 + 1),
        torch.randn(TOGETHER // 2 + 1),
        torch.randn(1, dtype=torch.float16),
    ]


def test_each_tensor_has_its_own_sum_in_its_own_place() -> None:
    of = tensors()
    assert [int(total) for total in sums_of_bits(of)] == [summed(tensor) for tensor in of]


def test_sums_in_any_order_are_those_of_all_tensors() -> None:
    of = tensors()
    assert sorted(sums_in_any_order(of).tolist()) == sorted(summed(tensor) for tensor in of)


def test_a_change_of_one_tensor_changes_one_sum_in_any_order() -> None:
    of = tensors()
    before = sums_in_any_order(of)
    of[2][1, 1] += 1.0
    assert int((sums_in_any_order(of) != before).sum()) == 1
