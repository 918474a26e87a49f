"""The functions on padding that OpenRLHF imports, by plain indexing."""

from __future__ import annotations

import torch
from einops import rearrange

__all__ = ["index_first_axis", "pad_input", "rearrange", "unpad_input"]


def index_first_axis(values: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Rows of `values`, shape (rows, ...)."""
    return values[indices]


def unpad_input(
    values: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """The real positions of `values`, shape (batch, length, ...), with where they were and how many each row has."""
    lengths = mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(mask.flatten(), as_tuple=False).flatten()
    ends = torch.nn.functional.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    return values.flatten(0, 1)[indices], indices, ends, int(lengths.max()), lengths


def pad_input(values: torch.Tensor, indices: torch.Tensor, batch: int, length: int) -> torch.Tensor:
    """The inverse of `unpad_input`, with zeros as padding."""
    padded = values.new_zeros((batch * length, *values.shape[1:]))
    padded = padded.index_copy(0, indices, values)
    return padded.view(batch, length, *values.shape[1:])
