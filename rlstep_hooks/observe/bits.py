"""Bit patterns of numbers: equal exactly where nobody wrote, NaN included."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(values: Tensor) -> Tensor:
    """The numbers' bits as integers of their size; a view where they are contiguous."""
    return values.contiguous().view(_INTEGERS[values.element_size()])
