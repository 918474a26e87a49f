"""How far the log-probs of the rollout engine, or of the reference, are from those of the trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import torch

from rlstep_hooks.observe.token_distances import gap_fields
from rlstep_hooks.record.events import RolloutValues
from rlstep_hooks.systems.verl.observe.samples import names_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


ENOUGH_TOKENS = 64
"""Tokens of samples of the same weights from which their mean says something."""


def sampler_gap(number: int, own: list[Any] | None, data: Any, *, label: int | None, fit: str) -> RolloutValues:
    """How far the engine's log-probs of the sampled tokens are from the trainer's, over real tokens.

    Args:
        number: The number of the refresh that computed the trainer's log-probs.
        own: The trainer's, without padding; None where they are not at hand.
        data: verl's, of the samples.
        label: The engine's name for the weights that computed them; None where it has none.
        fit: What gives the engine's instead, if anything does.
    """
    engine, masks = rows_of(data, "rollout_log_probs"), rows_of(data, "response_mask")
    if own is None or engine is None or masks is None:
        return RolloutValues(index=number)
    rows = [
        (mine.float() - theirs[: len(mine)].float())[mask[: len(mine)].bool()]
        for mine, theirs, mask in zip(own, engine, masks, strict=True)
    ]
    gaps = torch.cat(rows)
    if not gaps.numel():
        return RolloutValues(index=number)
    values = RolloutValues(index=number, sampler_gap_fit=fit, **gap_fields(gaps))
    oldest = names_of(data, "min_global_steps")
    if label is None or oldest is None:
        return values
    fresh = [row for row, of in zip(rows, oldest, strict=True) if of == str(label)]
    of_fresh = torch.cat(fresh) if fresh else gaps[:0]
    if of_fresh.numel() < ENOUGH_TOKENS:
        return values
    return msgspec.structs.replace(values, sampler_gap_fresh=float(of_fresh.abs().mean()))


def mean_gap(own: Sequence[Tensor], others: Sequence[Tensor], masks: Sequence[Tensor]) -> float | None:
    """Mean |own - others| of log-probs over the tokens that count; None where there are none. Rows are without padding."""
    rows = zip(own, others, masks, strict=True)
    gaps = torch.cat([(mine.float() - theirs.float()).abs()[mask.bool()] for mine, theirs, mask in rows])
    return float(gaps.mean()) if gaps.numel() else None
