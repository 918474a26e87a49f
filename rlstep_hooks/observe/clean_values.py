"""Values of a row that were computed again alone, beside those that training takes. L tokens of a row, N of which count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from rlstep_hooks.observe.explained_distance import cause_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlstep_hooks.observe.forward_beside import RowsBeside

ROUNDINGS = 2
"""Roundings of what a value is added up from that a distance may have."""


def fields_of_values(
    given: Tensor,
    values: Tensor,
    sizes: Tensor,
    counted: Tensor,
    dtype: torch.dtype,
    mistakes: Iterable[tuple[str, Tensor]] = (),
) -> dict[str, Any]:
    """Compare the values of one row with those of the row alone. All is on the CPU, in float32.

    Args:
        given: (N,), what training takes.
        values: (L,), of the row alone, at each of its tokens.
        sizes: (L,), the sizes of what each value is added up from: a sum of large numbers that is small has their rounding.
        counted: (L,), where a value counts.
        dtype: In which the head computes.
        mistakes: Further values (N,) that a mistake would give, each with what it is.

    Returns:
        Fields of `MicroBatchValues`: the mean distance over the mean size of the values, 0 where rounding explains it.
    """
    clean = values[counted]
    gap = _apart(given, clean)
    rounding = torch.finfo(dtype).eps * float(sizes.mean()) * ROUNDINGS
    if gap <= rounding:
        return {"clean_gap": 0.0, "clean_like": ""}
    unit = max(float(clean.abs().mean()), torch.finfo(torch.float32).tiny)
    others = (
        *mistakes,
        ("those of the token before each", values.roll(1)[counted]),
        ("those of the token after each", values.roll(-1)[counted]),
        ("0", torch.zeros_like(clean)),
    )
    like = cause_of(given, clean, others, rounding)
    return {"clean_gap": min(gap / unit, 1e30), "clean_like": like}


def values_at_head(row: RowsBeside, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """The values of one row that has gone through a model's layers beside another forward, and the sizes of what each is added up from.

    Args:
        row: The row, H numbers for each of its tokens.
        weight: (1, H), of the head.
        bias: (1,), of the head.

    Returns:
        (L,) and (L,).

    Raises:
        ValueError: The forward left out modules, so that the row did not get to its end.
    """
    if row.hidden is None:
        raise ValueError("the forward left out modules that the row alone goes through")
    hidden = row.hidden[0]
    values = linear(hidden.to(weight.dtype), weight, bias).squeeze(-1)
    return values, hidden.abs().float() @ weight.detach().abs().float().squeeze(0)


def _apart(one: Tensor, other: Tensor) -> float:
    """The mean distance; two that are no numbers are equal."""
    distance = (one - other).abs().nan_to_num(nan=1e30, posinf=1e30)
    return float(torch.where(one.isnan() & other.isnan(), 0.0, distance).mean())


def farthest(found: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The fields of the row that is farthest from what it is alone, said to be about values; none where no row was compared."""
    fields = max(found, key=lambda of: of["clean_gap"], default=None)
    return {} if fields is None else fields | {"clean_of": "the values"}
